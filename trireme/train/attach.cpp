#include "trireme/train/attach.h"

#include <optional>

#include "trireme/nn/bind.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/parallel/fully_sharded.h"
#include "trireme/train/stages.h"

namespace trireme::train {

std::shared_ptr<nn::ModelImpl> build(const ModelFactory& model, const Mesh& mesh) {
  std::optional<nn::Deferred> deferred;
  if (mesh.degrees().shard > 1 || mesh.degrees().pipe > 1) deferred.emplace();
  return model(mesh);
}

Policy policy_of(const config::Config& config, const Degrees& degrees) {
  const core::DType dtype = config.precision.compute == config::Dtype::Float64
                                ? core::DType::Float64
                                : core::DType::Float32;
  const auto sharding = [&] {
    if (degrees.shard == 1) return Sharding::None;
    switch (config.memory.shard) {
      case config::ShardedState::Optimizer: return Sharding::Optimizer;
      case config::ShardedState::Gradients: return Sharding::Gradients;
      case config::ShardedState::Parameters: break;
    }
    return Sharding::Parameters;
  };
  return {.sharding = sharding(), .dtypes = {dtype, dtype, dtype}};
}

std::unique_ptr<parallel::Attached> attach(const config::Config& config, const Mesh& mesh,
                                           nn::ModelImpl& model, const AttachOptions& options) {
  const Sharding sharding = policy_of(config, mesh.degrees()).sharding;
  const parallel::BucketSizes buckets{.bytes =
                                          static_cast<int64_t>(config.comm.bucket_mib * (1 << 20))};
  if (mesh.degrees().pipe > 1)
    return make_pipeline(config, mesh, model,
                         {.cut = options.cut,
                          .buckets = buckets,
                          .sharding = sharding,
                          .keep_gathered = config.pipeline.keep_gathered,
                          .trace = options.trace,
                          .reducer = options.reducer});
  if (sharding == Sharding::None)
    return std::make_unique<parallel::DataParallel>(
        model, mesh, parallel::DataParallelOptions{.buckets = buckets, .reducer = options.reducer});
  return std::make_unique<parallel::FullySharded>(
      model, mesh, parallel::FullyShardedOptions{.sharding = sharding, .reducer = options.reducer});
}

}  // namespace trireme::train
