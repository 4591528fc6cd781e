#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/nn/weight_queue.h"
#include "trireme/parallel/attached.h"
#include "trireme/parallel/buckets.h"

namespace trireme::parallel {

/// Makes the buckets of parameters that are summed over the same ranks.
using BucketFactory = std::function<std::unique_ptr<Buckets>(
    const GradientSums& sums, const std::vector<std::size_t>& parameters)>;

/// Collects the gradients of parameters while backward computes them, and sums each over its ranks
/// in the meantime.
///
///   collect(More, backward)    accumulates
///   collect(Last, backward)    accumulates, and starts the reduction of each complete bucket
///   start_rest(), wait()       the sums are in `home`
///
/// Gradients live in buckets of registered memory. Between `collect` and the end of the step a
/// parameter's .grad is undefined; afterwards it is the bucket's memory.
class Gradients {
 public:
  /// Parameters with the same sums share buckets. Collective.
  Gradients(std::vector<nn::Parameter> parameters, std::vector<ParameterShard> shards,
            const Mesh& mesh, const Policy& policy, const BucketFactory& make);
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  /// Runs `body`, which computes gradients: a backward, or the delivery of deferred gradients.
  void collect(Micro micro, const std::function<void()>& body);

  /// Runs `body` and puts off the gradients that come meanwhile, in the order in which they come:
  /// those that layers defer, and the others, which are computed already. `collect` takes them
  /// later, from nn::deliver.
  std::vector<nn::WeightJob> defer(nn::WeightQueue& queue, const std::function<void()>& body);

  /// Drops the gradients of this step, after a forward between two micro-batches threw: the next
  /// backward begins the step anew. All ranks must call it. It cannot help after a backward that
  /// threw, and after the last backward of a step `finish` must follow.
  /// Returns whether there was a step to forget.
  bool discard();

  /// Starts the reductions that have not started: no more gradients come.
  void start_rest();
  /// Waits for all of them.
  void wait();
  /// Ends the step. After the first one the ranks agree on the order in which gradients arrived.
  void end_step();

  /// A gradient of a parameter is complete; autograd's hooks call this.
  void ready(std::size_t parameter);

  const std::vector<nn::Parameter>& parameters() const { return parameters_; }
  const std::vector<ParameterShard>& shards() const { return shards_; }

  /// The summed gradient of shard `k`, after `wait`. Zeros if no gradient came.
  at::Tensor home(std::size_t k);
  /// Makes `home` have the dtype in which gradients are added up: see Buckets::widen.
  void widen(std::size_t k);
  /// Does `home` have memory already? It has none if no gradient came and no other rank adds to it.
  bool has_home(std::size_t k) const;
  /// Did a gradient of the parameter come on this rank; did one come after its bucket had started?
  bool used(std::size_t parameter) const { return used_[parameter]; }
  bool is_late(std::size_t parameter) const { return late_[parameter].defined(); }
  /// Sums the gradients that came late on some ranks, in the order of the parameter's boxes.
  /// Collective.
  std::vector<at::Tensor> sum_late(std::size_t parameter);

  /// The order of the buckets, by name, for checkpoints. Empty until it is known.
  std::vector<std::string> order() const;
  /// How many gradients of a step each parameter waits for, if more than one.
  Fires fires() const;
  /// Uses an order that was observed before. All ranks must give the same names.
  void set_order(const std::vector<std::string>& names, const Fires& fires = {});

  int64_t memory_bytes() const;
  /// How many reductions of this step have started.
  std::size_t num_begun() const;

 private:
  struct BucketIndex {  // where a parameter is: in which buckets, at which index
    std::size_t set, index;
  };
  void attach_hooks();
  void begin_step();
  void check_not_broken() const;
  Buckets& set_of(std::size_t parameter) const { return *sets_[bucket_index_[parameter].set]; }

  std::vector<nn::Parameter> parameters_;
  std::vector<ParameterShard> shards_;
  std::vector<BucketIndex> bucket_index_;
  std::vector<std::unique_ptr<Buckets>> sets_;
  std::vector<bool> used_;  // valid after `wait`
  std::vector<at::Tensor> late_;
  nn::WeightQueue* deferring_ = nullptr;
  bool in_step_ = false, accumulates_ = false;
  bool broken_ = false;  // a backward threw, so the gradients are incomplete
};

}  // namespace trireme::parallel
