#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/mesh/mesh.h"
#include "trireme/nn/loss.h"
#include "trireme/nn/weight_queue.h"
#include "trireme/parallel/attached.h"
#include "trireme/parallel/buckets.h"

namespace trireme::parallel {

/// How the gradients of some parameters end as shards.
struct Scattering {
  std::vector<ShardedParameter> shards;          ///< of each parameter
  std::vector<std::vector<at::Tensor>> tensors;  ///< of each of its boxes, this rank's shard
  std::vector<std::size_t> unit_of;              ///< those of a unit are reduced together
  std::vector<std::string> units;                ///< their names
  bool keep_whole = false;                       ///< until the end of the step
};

/// Throws unless both are one number.
void check(const nn::Loss& loss);

/// Warns, once and on the first rank, that a step had no weight.
void report_weightless(const comm::Communicator& world, bool& told);

/// Sums the gradients of a module's parameters over the ranks that hold them, while backward runs.
///
///   gradients.backward(loss, Micro::More);    // accumulates
///   gradients.backward(loss);                 // reduces what is complete while it runs
///   gradients.finish();                       // .grad is that of one process on the whole batch
///
/// Gradients live in buckets of registered memory. Between `backward` and `finish` a parameter's
/// .grad is undefined; afterwards it is the bucket's memory. A parameter that no rank used has no
/// gradient, as in torch; one that some ranks used has the right one.
class Gradients {
 public:
  /// Over the axes on which the layouts leave gradients partial: replica, shard and context, what a
  /// layout names, and between the copies that a cut makes. Collective.
  Gradients(const torch::nn::Module& module, const Mesh& mesh, BucketSizes sizes = {});

  /// The same, but over the shard axis each rank gets its shard only. Collective.
  Gradients(std::vector<nn::Parameter> parameters, const Mesh& mesh, Scattering scattering);
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  void backward(const nn::Loss& loss, Micro micro = Micro::Last);

  /// The same for whatever gives gradients: a backward that begins in the middle of a model, or
  /// those that were deferred.
  void collect(Micro micro, const std::function<void()>& body);

  /// Gradients that come while `body` runs are put off, in the order in which they come: those of
  /// layers that defer, and the others, which are there already. Give them to `collect` later, by
  /// nn::deliver.
  std::vector<nn::WeightJob> defer(nn::WeightQueue& queue, const std::function<void()>& body);

  /// Where the ranks that see the losses are not of this mesh: the total weight of the step, for
  /// the next `finish`.
  void set_weight(double total) { known_weight_ = total; }

  /// Forgets what has come in this step, after a forward between two micro-batches threw: the next
  /// backward begins the step anew. All ranks must do it. (After a backward that threw nothing
  /// helps; after the last one of a step, `finish` is due.)
  void discard();

  /// Begins the reductions that have not begun: nothing more will come. `finish` does it too.
  void start_rest();

  /// Completes the step; a rank that had nothing to do calls only this. `values` of all ranks are
  /// added up on the way; weights, which the ranks of a tensor axis have in common, count once.
  /// Total weight 0: there are no gradients, and a warning says so. Collective.
  Totals finish(std::span<const double> values = {}, Divide divide = Divide::Now);

  /// A gradient of a parameter is there: what autograd's hooks call.
  void ready(std::size_t parameter);

  const std::vector<nn::Parameter>& parameters() const { return parameters_; }

  /// What this rank keeps of them, in their order; gradients are here after `finish`.
  const std::vector<Kept>& kept() const { return kept_; }

  /// Where gradients end as shards: backward comes to the units in this order, on every rank.
  void set_unit_order(const std::vector<std::size_t>& units);

  /// The order of the buckets, by name: for checkpoints. Empty until it was observed.
  std::vector<std::string> order() const;
  /// How many gradients of a step each parameter waits for, where it is more than one.
  Fires fires() const;
  /// Starts from what was observed before. Collective in that all ranks must give the same names.
  void set_order(const std::vector<std::string>& names, const Fires& fires = {});

  int64_t memory_bytes() const;
  /// How many reductions of this step have begun: between `backward` and `finish`, all of them.
  std::size_t num_begun() const;

 private:
  struct Reduced {  // where a parameter is reduced
    std::size_t set, place;
  };
  struct Copied {  // what the ranks of a group hold alike, each with its own part of the gradient
    std::size_t kept, piece;
  };
  using Sets = std::map<std::vector<Axis>, std::vector<std::size_t>>;
  Sets by_axes() const;
  void attach_hooks();
  void find_copies(const Mesh& mesh);
  void sum_copies(const double* used);
  void begin_step();
  void check_not_broken() const;
  void report_unused(const double* used);

  std::vector<nn::Parameter> parameters_;
  std::vector<Reduced> reduced_;
  std::vector<std::unique_ptr<Buckets>> sets_;
  std::vector<Kept> kept_;
  std::vector<std::size_t> home_of_;  // which of its parameter's homes has the kept one's gradient
  std::map<int, std::pair<comm::Communicator, std::vector<Copied>>> copied_;  // by how many
  comm::Communicator world_;
  bool counts_;  // does the weight of this rank count, or that of another which has the same?
  at::Tensor totals_;
  double weight_ = 0;
  std::optional<double> known_weight_;
  nn::WeightQueue* deferring_ = nullptr;
  bool in_step_ = false, accumulates_ = false, broken_ = false;
  bool told_unused_ = false, told_weightless_ = false;
};

}  // namespace trireme::parallel
