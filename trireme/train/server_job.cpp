#include "trireme/train/server_job.h"

#include <algorithm>
#include <map>

#include "trireme/compress/factory.h"
#include "trireme/config/optimizer.h"
#include "trireme/core/error.h"
#include "trireme/layout/even_range.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/chain.h"
#include "trireme/train/attach.h"
#include "trireme/train/given_values.h"
#include "trireme/train/parameter_groups.h"
#include "trireme/train/stages.h"
#include "trireme/worker/buffer_table.h"
#include "trireme/worker/compressing_filter.h"
#include "trireme/worker/fused_rules.h"
#include "trireme/worker/parameter_table.h"

namespace trireme::train {

namespace {

/// Of the optimizer: if parameters differ in it, the factors of the pieces say the weight decay.
config::Optim common_keys(config::Optim keys) {
  if (!keys.groups.empty()) keys.weight_decay = 1;
  return keys;
}

ps::PieceFactors factors_of(const config::Optim& keys, const nn::Parameter& parameter) {
  const Recipe recipe = recipe_of(keys, parameter);
  if (!keys.groups.empty()) return {.rate = recipe.rate, .decay = recipe.weight_decay};
  return {.decay = optim::is_decayed(parameter.layout.whole()) ? 1.0 : 0.0};
}

std::shared_ptr<const ps::Filter> filter_of(const config::Config& config) {
  using compress::Kind;
  const auto kind = [&]() -> std::optional<Kind> {
    switch (config.compress.kind) {
      case config::Compression::Fp16: return Kind::Fp16;
      case config::Compression::Bf16: return Kind::Bf16;
      case config::Compression::Int8: return Kind::Int8;
      case config::Compression::OneBit: return Kind::OneBit;
      case config::Compression::TopK: return Kind::TopK;
      default: return std::nullopt;
    }
  }();
  if (!kind) return nullptr;
  return ps::make_filter(compress::make_compressor({.kind = *kind, .ratio = config.compress.ratio}),
                         static_cast<uint64_t>(config.run.seed), config.compress.feedback);
}

/// The parameters and the buffers of every pipe rank of a worker, and which pipe ranks hold each
/// parameter.
struct StageTensors {
  std::vector<std::vector<nn::Parameter>> parameters;
  std::vector<ps::TableConfig> buffers;
  std::map<std::string, Holders> holders;
};

StageTensors stage_tensors(const config::Config& worker, nn::ModelImpl& whole,
                           const Degrees& degrees) {
  StageTensors all;
  if (degrees.pipe == 1) {
    all.parameters.push_back(nn::parameters_of(whole));
    all.buffers.push_back(ps::buffer_table(whole));
    return all;
  }
  const pipeline::Schedule schedule = schedule_of(worker, degrees);
  const auto cut = cut_of(worker, mesh_of_one(), whole, schedule, worker.pipeline.balance);
  const nn::Chain chain = whole.chain();
  for (int rank = 0; rank < degrees.pipe; ++rank) {
    std::vector<std::shared_ptr<nn::LayerImpl>> own;
    std::size_t begin = 0;
    for (int stage = 0; stage < schedule.stages(); ++stage) {
      const std::size_t end =
          begin + static_cast<std::size_t>(cut[static_cast<std::size_t>(stage)]);
      if (schedule.rank_of(stage) == rank)
        for (const nn::Link* link : chain.all_between(begin, end))
          own.insert(own.end(), link->layers.begin(), link->layers.end());
      begin = end;
    }
    const auto part = nn::part_of_model(whole, own);
    all.parameters.push_back(nn::parameters_of(*part));
    all.buffers.push_back(ps::buffer_table(*part));
    for (const nn::Parameter& one : all.parameters.back()) all.holders[one.name].push_back(rank);
  }
  return all;
}

/// What the keys say of every table, and of those of weights.
void apply_consistency(ps::TableConfig& table, const config::Config& config) {
  const bool is_free = config.sync.kind == config::SyncKind::Free;
  table.consistency = is_free ? ps::Consistency::Free : ps::Consistency::Stale;
  table.tau = is_free ? 0 : config.sync.staleness;
}

void apply_keys(ps::TableConfig& table, const config::Config& config) {
  apply_consistency(table, config);
  table.rule = server_rule(config);
  table.clip_norm = config.optim.clip;
  table.check_finite = config.check.finite;
  table.staleness_aware = config.sync.lr_by_staleness;
  table.filter = filter_of(config);
}

}  // namespace

config::Config config_of_worker(config::Config config) {
  config.mesh.replica = 1;
  config.compress = {};                   // of pushes
  config.run.graph = config::Graph::Off;  // a step waits for servers
  // Its ranks wait for each other while one of them waits for servers, or for work, which may take
  // any time. Those that die or stop are noticed all the same.
  config.comm.timeout_s = 1e9;
  if (config.pipeline.balance.by == config::Balance::By::Time)  // servers must know the stages
    config.pipeline.balance.by = config::Balance::By::Parameters;
  return config;
}

config::Config with_worker_rows(config::Config config, int64_t workers) {
  config.batch.global = even_range(config.batch.global, workers, 0).count;
  return config;
}

Degrees degrees_of_worker(const config::Config& config) {
  const config::MeshKeys& mesh = config.mesh;
  return {.pipe = static_cast<int>(mesh.pipe),
          .shard = static_cast<int>(mesh.shard),
          .context = static_cast<int>(mesh.context),
          .tensor = static_cast<int>(mesh.tensor)};
}

ps::RulePtr server_rule(const config::Config& config) {
  const config::Optim keys = common_keys(config.optim);
  switch (config::updating_optimizer(config)) {
    case config::ServerOptimizer::Sgd:
      return ps::make_fused_sgd({.momentum = keys.momentum, .weight_decay = keys.weight_decay});
    case config::ServerOptimizer::Adagrad: return ps::make_adagrad({.lr = 1, .epsilon = keys.eps});
    default:
      return ps::make_fused_adamw({.beta1 = keys.betas[0],
                                   .beta2 = keys.betas[1],
                                   .epsilon = keys.eps,
                                   .weight_decay = keys.weight_decay});
  }
}

ps::JobConfig server_job(const config::Config& config, nn::ModelImpl& whole,
                         const ServerSteps& steps, const ps::JobRole& role) {
  constexpr uint32_t kRangesPerServer = 8, kServerThreads = 2, kStepsPerTask = 8;
  constexpr auto kBackupAfter = std::chrono::seconds(1);
  ps::JobConfig job{.name = role.job,
                    .seed = static_cast<uint64_t>(config.run.seed),
                    .servers = role.servers,
                    .workers = role.workers,
                    .worker_ranks = role.worker_ranks,
                    .copies = static_cast<uint32_t>(config.sync.copies)};
  job.server_bytes = static_cast<uint64_t>(config.sync.server_memory_mib) << 20;
  job.ranges = std::max(16U, kRangesPerServer * role.servers);
  job.lanes = kServerThreads;
  const auto every = static_cast<uint64_t>(config.checkpoint.every);
  job.data = {
      .begin = static_cast<uint64_t>(steps.first) * role.workers,
      .epochs = steps.steps > 0 ? 1U : 0U,
      .batches_per_epoch = static_cast<uint64_t>(std::max<int64_t>(1, steps.steps)) * role.workers,
      .steps_per_task = every > 0 ? std::min<uint64_t>(every, kStepsPerTask) : kStepsPerTask,
      .snapshot_steps = every};
  job.start_from = steps.start_from;
  if (config.sync.backup) job.timing.backup_after = kBackupAfter;

  const config::Config worker = with_worker_rows(config_of_worker(config), role.workers);
  const Degrees degrees = degrees_of_worker(config);
  nn::name_layers(whole);
  const StageTensors stages = stage_tensors(worker, whole, degrees);
  const Policy policy = policy_of(worker, degrees);
  for (int rank = 0; rank < static_cast<int>(role.worker_ranks); ++rank) {
    const Coord coord = coord_of(rank, degrees);
    ps::TableConfig table = ps::parameter_table(
        fmt::format("weights-{}", rank),
        {.coord = coord,
         .degrees = degrees,
         .policy = policy,
         .parameters = stages.parameters[static_cast<std::size_t>(coord.pipe)],
         .holders =
             [&](const std::string& name) {
               const auto found = stages.holders.find(name);
               return found == stages.holders.end() ? Holders{} : found->second;
             },
         .factors = [&](const nn::Parameter& one) { return factors_of(config.optim, one); }});
    if (table.pieces.empty()) continue;  // other ranks count all that this one holds
    apply_keys(table, config);
    table.rank = static_cast<uint32_t>(rank);
    job.tables.push_back(std::move(table));
  }
  // All ranks of a stage have the same buffers: the first pushes them.
  for (int pipe = 0; pipe < degrees.pipe; ++pipe) {
    ps::TableConfig table = stages.buffers[static_cast<std::size_t>(pipe)];
    if (table.pieces.empty()) continue;
    apply_consistency(table, config);
    table.rank = static_cast<uint32_t>(rank_of({.pipe = pipe}, degrees));
    table.name = fmt::format("buffers-{}", table.rank);
    job.tables.push_back(std::move(table));
  }
  if (!config.model.from.empty() && steps.start_from.empty())
    for (ps::TableConfig& table : job.tables) table.first_values = given_values(config);
  ps::check(job);
  return job;
}

}  // namespace trireme::train
