#pragma once

#include <string>
#include <vector>

#include "trireme/parallel/gradients.h"

namespace trireme::parallel {

/// Throws unless the sum and the weight are one number each.
void check(const nn::Loss& loss);

/// The gradient that backward starts from: `scale`, or 1 if that is undefined.
at::Tensor seed_of(const nn::Loss& loss, const at::Tensor& scale);

/// Its sum and its weight, as two float64 numbers where it was computed.
at::Tensor numbers_of(const nn::Loss& loss);

/// Says once per world that the total weight of a step was 0.
class WeightlessWarning {
 public:
  void say(const comm::Communicator& world);

 private:
  bool said_ = false;
};

/// Completes the gradients of a step, for `finish` of DataParallel, FullySharded and Pipeline.
///
///   buckets    ──> copies of a box ──> tied weights ──> norm ──> one small reduction ──> .grad
///   (started       (`Reduction::later`)                         weight, loss, values, squares,
///   in backward)                                                parameters used, parameters late
///
/// On a GPU weight, loss and squares are sums on the device, and travel in a small reduction of
/// their own, so that the host does not wait for the device.
///
/// Gradients that came late (autograd delivered one more for a weight whose bucket had started) are
/// summed afterwards, and the norm is summed once more. This happens only in a step whose graph
/// differs from those before.
class StepEnd {
 public:
  /// `parts`: the gradients of each module; `shards`: the modules' shards in order, with the sums
  /// of the whole mesh. `names`: of all parameters that are trained on any rank, in the same order
  /// on every rank. Collective: makes the groups of copies.
  StepEnd(const Mesh& mesh, std::shared_ptr<Reducer> reducer, std::vector<Gradients*> parts,
          std::vector<ParameterShard> shards, std::vector<std::string> names);

  /// `own`: the losses of this rank. If the total weight is 0 there are no gradients, and a warning
  /// says so. Collective.
  Totals finish(const LossTotals& own, const Finish& what);

  const std::vector<ParameterShard>& shards() const { return shards_; }

 private:
  struct GradientSource {  // where a shard's gradient comes from
    Gradients* gradients;
    std::size_t shard;  // in its list
    std::size_t name;   // of its parameter, among all
  };
  struct GradientPart {  // a box's part of a gradient, for the norm
    at::Tensor tensor;
    bool counts;  // or another rank counts it, and this one only looks whether it is finite
  };
  struct NamedParameter {  // a parameter of which this rank may have no shard
    Gradients* gradients;
    std::size_t parameter, name;
  };

  std::vector<std::pair<std::size_t, std::size_t>> boxes_over(const RankSet& set) const;
  void sum_later(const std::function<at::Tensor(std::size_t shard)>& gradient_of);
  void assign();
  std::vector<GradientPart> counted_parts() const;
  double squares() const;
  at::Tensor squares_on_device() const;
  at::Tensor device_totals(const LossTotals& own, bool norm) const;
  void add_late(const double* late);
  void report_unused(const double* used);
  void forget_unused(const double* used, bool all);
  at::Tensor widened(std::size_t shard);
  void divide(double weight);

  Mesh mesh_;
  std::shared_ptr<Reducer> reducer_;
  std::vector<Gradients*> parts_;
  std::vector<ParameterShard> shards_;
  std::vector<GradientSource> sources_;  // of each shard
  std::vector<NamedParameter> parameters_;
  std::vector<std::string> names_;
  /// A set of Reduction::later, and the boxes that are summed over it: in the same order on all its
  /// ranks, which may hold their shards in different orders.
  struct LaterSum {
    RankSet set;
    std::vector<std::pair<std::size_t, std::size_t>> boxes;  // shard, and box of it
  };
  std::vector<LaterSum> later_;  // copies first
  at::Tensor small_;             // the data of the small reduction
  WeightlessWarning weightless_;
  bool told_unused_ = false;
};

}  // namespace trireme::parallel
