#pragma once

#include "trireme/parallel/attached_module.h"
#include "trireme/parallel/sharded_weights.h"

namespace trireme::parallel {

/// What is kept in shards from step to step, over the ranks of the shard axis (the stages of ZeRO,
/// Rajbhandari et al. 2020). Each includes those before it.
enum class Sharding : uint8_t { Optimizer, Gradients, Parameters };

struct FullyShardedOptions {
  Sharding sharding = Sharding::Parameters;
  int ahead = 1;  ///< units that are gathered before they are needed
  /// How long weights stay gathered, and gradients whole: while a layer needs them, or (in a
  /// pipeline, between `hold` and `let_go`) over all micro-batches of a step.
  enum class Gathered : uint8_t { ForALayer, ForAStep } gathered = Gathered::ForALayer;
};

/// Spreads the state of a module over the ranks of the shard axis: each keeps about 1/n of it, and
/// the numbers are those of DataParallel.
///
///   const nn::Deferred deferred;             // a model that fits no rank: memory comes in shards
///   Net model(...);
///   nn::initialize(*model, seed);
///   parallel::FullySharded shards(*model, mesh);
///   ...                                      // an optimizer on shards.kept()
///   shards.backward(loss);
///   shards.finish();
///   optimizer.step(...);
///   shards.updated();
///
/// With a replica axis each of its ranks has the same shards: shard inside, replicate outside.
///
/// Memory in flight, besides activations: at most 1 + `ahead` gathered units, and one unit's
/// gradients (`ScatteredBuckets::kBlocks`).
class FullySharded final : public AttachedModule {
 public:
  /// Checks that all ranks have the same model, and gives every rank its shards: of the first
  /// rank's values, or of those that the initial rules make. Collective.
  FullySharded(torch::nn::Module& module, const Mesh& mesh, FullyShardedOptions options = {});
  ~FullySharded() override;

  void backward(const nn::Loss& loss, Micro micro = Micro::Last) override;
  void discard() override;
  void collect(Micro micro, const std::function<void()>& body) override;
  std::vector<nn::WeightJob> defer(nn::WeightQueue& queue,
                                   const std::function<void()>& body) override;
  void start_finish() override;
  void end_forward() override { weights_->end_pass(); }
  void hold() override { weights_->hold(); }
  void let_go() override { weights_->let_go_of_all(); }
  /// Also throws if ranks ran different layers, naming the unit and the ranks.
  Totals finish(std::span<const double> values = {}, Divide divide = Divide::Now) override;
  void updated() override { weights_->updated(); }
  /// Where parameters are kept whole, they are there again after an update, also outside of their
  /// layers.
  void settle() { weights_->settle(); }
  void check_same() const override;
  std::vector<Kept> shared() const override;
  Gradients& gradients() override { return *gradients_; }
  const Gradients& gradients() const override { return *gradients_; }
  const Mesh& mesh() const override { return mesh_; }
  std::vector<Kept> frozen() const override;
  at::Tensor value(std::size_t parameter) override;
  at::Tensor gradient(std::size_t parameter) override;
  std::vector<Value> frozen_values() override;

  const ShardedWeights& weights() const { return *weights_; }

 private:
  Mesh mesh_;
  std::vector<nn::Parameter> all_;
  const bool keeps_whole_;
  std::vector<std::size_t> trained_;  // which of all
  std::unique_ptr<ShardedWeights> weights_;
  std::unique_ptr<Gradients> gradients_;
  bool ordered_ = false, finishing_ = false;

  bool is_trained(std::size_t parameter) const;
  void begin_backward();
};

}  // namespace trireme::parallel
