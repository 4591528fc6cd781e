#pragma once

#include "trireme/parallel/attached_module.h"
#include "trireme/parallel/compress_options.h"
#include "trireme/parallel/gathered_weights.h"
#include "trireme/parallel/unit_buckets.h"

namespace trireme::parallel {

using trireme::Sharding;

struct FullyShardedOptions {
  Sharding sharding = Sharding::Parameters;
  Narrow gathers = {};       ///< how weights travel when they are gathered; on the CPU
  Precision precision = {};  ///< by default the module's own
  int ahead = 1;             ///< how many units are gathered before they are needed
  /// How long weights stay gathered, and gradients whole: while a layer needs them, or (in a
  /// pipeline, between `hold` and `release`) over all micro-batches of a step.
  enum class Gathered : uint8_t { ForALayer, ForAStep } gathered = Gathered::ForALayer;
  CompressOptions compress = {};  ///< how gradients are compressed on the wire
  /// How gradients are summed, whatever `compress` says; null: by `make_reducer`.
  std::shared_ptr<Reducer> reducer = nullptr;
};

/// Spreads the state of a module over the ranks of the shard axis: each keeps about 1/n of it, and
/// the numbers are those of DataParallel.
///
///   const nn::Deferred deferred;             // builds the model without memory
///   Net model(...);
///   nn::initialize(*model, seed);
///   parallel::FullySharded shards(*model, mesh);
///   ...                                      // an optimizer on shards.shards()
///   shards.backward(loss);
///   shards.finish();
///   optimizer.step(...);
///   shards.updated();
///
/// With a replica axis, all its ranks have the same shards: shard inside, replicate outside.
///
/// Memory in flight, besides activations: at most 1 + `ahead` gathered units, and one unit's
/// gradients (`ScatteredBuckets::kBlocks`).
class FullySharded final : public AttachedModule {
 public:
  /// Checks that all ranks have the same model, and gives every rank its shards of the first rank's
  /// values, or initializes the shards by their rules. Collective.
  FullySharded(torch::nn::Module& module, const Mesh& mesh, FullyShardedOptions options = {});
  ~FullySharded() override;

  void discard() override;
  void collect(Micro micro, const std::function<void()>& body) override;
  std::vector<nn::WeightJob> defer(nn::WeightQueue& queue,
                                   const std::function<void()>& body) override;
  void start_finish() override;
  /// Throws if ranks ran different layers, naming the unit and the ranks.
  void check_step() override;
  void end_forward() override { weights_->end_pass(); }
  void hold() override { weights_->hold(); }
  void release() override { weights_->release_all(); }
  /// Where weights are kept whole: waits until they are gathered after an update, so that they can
  /// be read outside of their layers.
  void complete_update() { weights_->complete_update(); }
  void close_steps() override { weights_->close_steps(); }
  std::vector<ParameterShard> shared() const override;
  Gradients& gradients() override { return *gradients_; }
  const Gradients& gradients() const override { return *gradients_; }
  std::vector<ParameterShard> frozen() const override;
  at::Tensor value(std::size_t parameter) override;
  at::Tensor gradient(std::size_t parameter) override;
  std::vector<ParameterValue> frozen_values() override;

  const ShardedWeights& weights() const { return *weights_; }

 protected:
  void pass_on(Weights weights) override { weights_->updated(weights); }

 private:
  std::vector<nn::Parameter> all_;
  const Policy policy_;
  std::vector<std::size_t> trained_;  // indices in all_
  std::unique_ptr<ShardedWeights> weights_;
  std::vector<UnitBuckets*> buckets_;  // gradients_ owns them
  std::unique_ptr<Gradients> gradients_;
  bool ordered_ = false, finishing_ = false;

  std::unique_ptr<Gradients> make_gradients(bool whole);
  bool keeps_weights_whole() const { return policy_.sharding != Sharding::Parameters; }
  bool is_trained(std::size_t parameter) const;
  void begin_backward();
};

}  // namespace trireme::parallel
