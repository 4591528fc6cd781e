#include "trireme/train/attach.h"

#include <algorithm>
#include <optional>

#include "trireme/compress/factory.h"
#include "trireme/core/error.h"
#include "trireme/nn/bind.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/parallel/fully_sharded.h"
#include "trireme/train/layer_times.h"
#include "trireme/train/parameter_groups.h"
#include "trireme/train/stages.h"

namespace trireme::train {

std::shared_ptr<nn::ModelImpl> build(const ModelFactory& model, const Mesh& mesh) {
  std::optional<nn::Deferred> deferred;
  if (mesh.degrees().shard > 1 || mesh.degrees().pipe > 1) deferred.emplace();
  return model(mesh);
}

namespace {

core::DType dtype_of(config::Dtype dtype) {
  switch (dtype) {
    case config::Dtype::Float32: break;
    case config::Dtype::Float64: return core::DType::Float64;
    case config::Dtype::BFloat16: return core::DType::BFloat16;
    case config::Dtype::Float16: return core::DType::Float16;
  }
  return core::DType::Float32;
}

/// How tensors travel that would travel as they are, by a key of the configuration.
parallel::Narrow narrow_of(std::string_view key, config::Narrow narrow, const Mesh& mesh) {
  using compress::Kind;
  if (narrow == config::Narrow::None) return {};
  if (!mesh.device().is_cpu())
    throw ConfigError(
        fmt::format("{} = \"{}\": tensors are encoded on the CPU, and this run computes on a GPU; "
                    "leave it out, or set run.device=cpu",
                    key, to_string(narrow)));
  const auto kind = [&] {
    switch (narrow) {
      case config::Narrow::None:
      case config::Narrow::Fp16: return Kind::Fp16;
      case config::Narrow::Bf16: return Kind::Bf16;
      case config::Narrow::Int8: break;
    }
    return Kind::Int8;
  };
  return parallel::Narrow(compress::make_compressor({.kind = kind()}));
}

}  // namespace

Policy policy_of(const config::Config& config, const Degrees& degrees) {
  const config::Precision& keys = config.precision;
  const core::DType compute = dtype_of(keys.compute);
  const bool rounds = is_half(compute) && keys.master == config::Master::Float32;
  const Precision precision{
      .dtypes = ParameterDtypes{.compute = compute,
                                .reduce = compute == core::DType::Float64 ? compute
                                                                          : dtype_of(keys.reduce),
                                .master = rounds ? core::DType::Float32 : compute},
      .keep = keys.keep};
  const auto sharding = [&] {
    switch (config.memory.shard) {
      case config::ShardedState::Optimizer: return Sharding::Optimizer;
      case config::ShardedState::Gradients: return Sharding::Gradients;
      case config::ShardedState::Parameters: break;
    }
    return Sharding::Parameters;
  };
  return {.sharding = sharding_on(degrees, sharding()), .precision = precision};
}

parallel::CompressOptions compress_of(const config::Config& config) {
  using enum parallel::Compression;
  const auto kind = [&] {
    switch (config.compress.kind) {
      case config::Compression::None: break;
      case config::Compression::Fp16: return Fp16;
      case config::Compression::Bf16: return Bf16;
      case config::Compression::Int8: return Int8;
      case config::Compression::OneBit: return OneBit;
      case config::Compression::TopK: return TopK;
      case config::Compression::RandomK: return RandomK;
      case config::Compression::PowerSgd: return PowerSgd;
      case config::Compression::Auto: return Auto;
    }
    return None;
  };
  return {.kind = kind(),
          .ratio = config.compress.ratio,
          .rank = config.compress.rank,
          .min_saving = config.compress.min_saving,
          .feedback = config.compress.feedback,
          .warmup = config.compress.warmup,
          .keep = config.compress.keep,
          .seed = static_cast<uint64_t>(config.run.seed)};
}

void check_patterns(const config::Config& config, const nn::ModelImpl& model) {
  const auto all = nn::parameters_of(model);
  const auto check = [&](std::string_view key, const std::vector<std::string>& patterns) {
    for (const std::string& pattern : patterns) {
      const bool matches = std::ranges::any_of(
          all, [&](const nn::Parameter& one) { return matches_name(pattern, one.name); });
      if (!matches && !all.empty())
        throw ConfigError(fmt::format("{}: \"{}\" matches no parameter; there are {}, ..., {}", key,
                                      pattern, all.front().name, all.back().name));
    }
  };
  check("precision.keep", config.precision.keep);
  check("compress.keep", config.compress.keep);
  check_groups(config.optim, all);
}

std::unique_ptr<parallel::Attached> attach(const config::Config& config, const Mesh& mesh,
                                           nn::ModelImpl& model, const AttachOptions& options) {
  if (options.trace != nullptr && mesh.device().is_cuda())
    trace_layers(model, options.trace, make_stream_clock(mesh.device()));
  auto [sharding, precision] = policy_of(config, mesh.degrees());
  precision.masters_on_host =
      config.memory.offload == config::Offload::Optimizer && !mesh.device().is_cpu();
  const parallel::BucketSizes buckets{.bytes =
                                          static_cast<int64_t>(config.comm.bucket_mib * (1 << 20))};
  const auto transfers = narrow_of("compress.transfers", config.compress.transfers, mesh);
  const auto gathers = narrow_of("compress.gathers", config.compress.gathers, mesh);
  if (mesh.degrees().pipe > 1)
    return make_pipeline(config, mesh, model,
                         {.cut = options.cut,
                          .buckets = buckets,
                          .sharding = sharding,
                          .keep_gathered = config.pipeline.keep_gathered,
                          .transfers = transfers,
                          .gathers = gathers,
                          .precision = precision,
                          .recompute = options.recompute,
                          .trace = options.trace,
                          .compress = compress_of(config),
                          .reducer = options.reducer});
  if (sharding == Sharding::None)
    return std::make_unique<parallel::DataParallel>(
        model, mesh,
        parallel::DataParallelOptions{.buckets = buckets,
                                      .precision = precision,
                                      .compress = compress_of(config),
                                      .reducer = options.reducer});
  return std::make_unique<parallel::FullySharded>(
      model, mesh,
      parallel::FullyShardedOptions{.sharding = sharding,
                                    .gathers = gathers,
                                    .precision = precision,
                                    .compress = compress_of(config),
                                    .reducer = options.reducer});
}

}  // namespace trireme::train
