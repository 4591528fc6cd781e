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

/// Makes the buckets of some parameters, which are summed over the same ranks.
using BucketFactory = std::function<std::unique_ptr<Buckets>(
    const GradientSums& sums, const std::vector<std::size_t>& parameters)>;

/// Takes the gradients of parameters as backward makes them, and sums each over its ranks while
/// backward runs.
///
///   collect(More, backward)    accumulates
///   collect(Last, backward)    starts the reduction of each bucket when it is complete
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

  /// Runs `body`, which makes gradients: a backward, or the delivery of those that were deferred.
  void collect(Micro micro, const std::function<void()>& body);

  /// Gradients that come while `body` runs are put off, in the order in which they come: those of
  /// layers that defer, and the others, which are there already. Give them to `collect` later, by
  /// nn::deliver.
  std::vector<nn::WeightJob> defer(nn::WeightQueue& queue, const std::function<void()>& body);

  /// Forgets what has come in this step, after a forward between two micro-batches threw: the next
  /// backward begins the step anew. All ranks must do it. (After a backward that threw nothing
  /// helps; after the last one of a step, `finish` is due.)
  void discard();

  /// Begins the reductions that have not begun: nothing more will come.
  void start_rest();
  /// Waits for all of them.
  void wait();
  /// The step is over. The order in which gradients arrived in the first one is agreed on.
  void end_step();

  /// A gradient of a parameter is there: what autograd's hooks call.
  void ready(std::size_t parameter);

  const std::vector<nn::Parameter>& parameters() const { return parameters_; }
  const std::vector<ParameterShard>& shards() const { return shards_; }

  /// The sum of the gradient of shard `k`, after `wait`. Zeros where nothing came for it.
  at::Tensor home(std::size_t k);
  /// Has it memory for that already? Not where nothing came and no other rank could add to it.
  bool has_home(std::size_t k) const;
  /// Did a gradient come for the parameter on this rank, before or after its bucket had begun?
  bool used(std::size_t parameter) const { return used_[parameter]; }
  bool is_late(std::size_t parameter) const { return late_[parameter].defined(); }
  /// The sums of what came late on some rank, in the order of the parameter's boxes. Collective.
  std::vector<at::Tensor> sum_late(std::size_t parameter);

  /// The order of the buckets, by name: for checkpoints. Empty until it was observed.
  std::vector<std::string> order() const;
  /// How many gradients of a step each parameter waits for, where it is more than one.
  Fires fires() const;
  /// Starts from what was observed before. Collective in that all ranks must give the same names.
  void set_order(const std::vector<std::string>& names, const Fires& fires = {});

  int64_t memory_bytes() const;
  /// How many reductions of this step have begun: between `collect` and `wait`, all of them.
  std::size_t num_begun() const;

 private:
  struct BucketIndex {  // of a parameter in the buckets
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
  std::vector<bool> used_;  // after `wait`
  std::vector<at::Tensor> late_;
  nn::WeightQueue* deferring_ = nullptr;
  bool in_step_ = false, accumulates_ = false;
  bool broken_ = false;  // a backward threw: what it left behind is incomplete
};

}  // namespace trireme::parallel
