#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "cli/config_text.h"
#include "cli/rank_commands.h"
#include "models/registry.h"
#include "trireme/config/mesh.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/format/load.h"
#include "trireme/train/datasets.h"
#include "trireme/train/footprint.h"
#include "trireme/train/resume_point.h"
#include "trireme/train/run.h"
#include "trireme/train/server_job.h"
#include "trireme/train/server_run.h"
#include "trireme/train/stages.h"
#include "trireme/train/trainer.h"
#include "trireme/train/world.h"

namespace trireme::cli {

namespace {

std::string counted(int64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

/// Of a run on servers.
int64_t num_workers(const config::Config& config) {
  return std::max<int64_t>(1, config.mesh.replica);
}

/// Checks the data files that exist; missing ones may be made later.
void check_data(const config::Config& config) {
  if (config.data.kind == config::DataKind::Markov) return;
  const auto look = [](const char* key, const std::string& path, const auto& open) {
    for (const char* suffix : {"", ".idx", ".bin"})
      if (::access((path + suffix).c_str(), F_OK) == 0) return open();
    fmt::print("{}: {} does not exist yet\n", key, path);
  };
  look("data.path", config.data.path, [&] { (void)train::make_dataset(config); });
  if (config.eval.every > 0)
    look("data.valid", config.data.valid, [&] { (void)train::make_valid_dataset(config); });
}

/// Throws unless the folder of the run, or the nearest existing one above it, can be written.
void check_run_folder(const config::Config& config) {
  std::string place = config.run.dir;
  while (::access(place.c_str(), F_OK) != 0 && errno == ENOENT) {
    const auto slash = place.find_last_of('/');
    place = slash == place.npos ? "." : slash == 0 ? "/" : place.substr(0, slash);
  }
  if (::access((place + "/.").c_str(), W_OK) != 0)
    throw ConfigError(
        fmt::format("the run's folder: cannot write in {}: {}", place, core::errno_text(errno)));
}

/// Prints how the batch is split over ranks and micro-batches.
void print_batches(const config::Config& config, const Degrees& degrees) {
  const int64_t ranks = degrees.samples(), batch = config.batch.global;
  fmt::print("batches of {}: {} per rank, in micro-batches of at most {}\n",
             counted(batch, "sample"), (batch + ranks - 1) / ranks, config.batch.micro);
  if (batch < ranks)
    fmt::print("{} have nothing to do: raise batch.global, or lower mesh.replica or mesh.shard\n",
               counted(ranks - batch, "rank"));
  if (degrees.pipe == 1) return;
  const auto schedule = train::schedule_of(config, degrees);
  const int micros = train::num_micros_of(config, degrees);
  fmt::print("a pipeline of {} stages: {} micro-batch{} by {}{}\n", schedule.stages(), micros,
             micros == 1 ? "" : "es", schedule.name,
             config.pipeline.balance.by == config::Balance::By::Time
                 ? "; stages will be balanced by time; this estimate balances by parameters"
                 : "");
}

}  // namespace

Degrees refuse_early(const config::Config& config, int ranks) {
  const Degrees degrees = config::degrees_of(config, ranks);
  train::uses_cuda(config);
  if (degrees.pipe > 1) train::schedule_of(config, degrees);
  return degrees;
}

int train(const std::vector<std::string>& args) {
  const auto config = load_config(args.at(0), {args.begin() + 1, args.end()});
  if (core::env("TRIREME_ROLE") && !config.sync.on_servers())
    throw ConfigError(
        "the launcher started a manager, servers and workers, but this configuration trains "
        "without them: leave --servers and --workers out, or set sync.kind and let `trireme train` "
        "start them");
  if (config.sync.on_servers())
    return train::run_on_servers(config, models::make_whole, models::make_model);
  const train::StopSignals signals;  // before any other thread
  refuse_early(config, train::num_ranks(config));
  return train::with_ranks(config, [&](const comm::Communicator& world) {
    const auto model = [&](const Mesh& mesh) { return models::make_model(config, mesh); };
    return train::run(config, world, model, signals);
  });
}

int mesh_check(const std::vector<std::string>& args) {
  static std::string speaker;
  speaker = args.at(0);
  program_invocation_short_name = speaker.data();
  auto config = load_config(args.at(1), {args.begin() + 2, args.end()});
  if (config.sync.on_servers()) {  // then the mesh is that of a worker
    const auto& [from, folder] = config.checkpoint.resume;
    if (from == config::Resume::From::Nothing) train::refuse_newer(config, -1);
    if (from == config::Resume::From::Folder)
      train::refuse_newer(config, format::Checkpoint(folder).index().step);
    train::check_servers(config, models::make_whole);
    config = train::with_worker_rows(train::config_of_worker(config), num_workers(config));
  }
  const Degrees degrees =
      refuse_early(config, config.sync.on_servers() ? train::degrees_of_worker(config).world()
                                                    : train::planned_ranks(config));
  if (degrees.tensor > 1) models::make_whole(config, degrees);  // shapes only
  return 0;
}

namespace {

/// What the mesh does to the parameters, as layout/reduction.h says it.
void print_axes(const config::Config& config, const Degrees& degrees) {
  if (degrees.world() == 1) return;
  const auto line = [&](const char* what, const Layout& layout, const std::string& held) {
    const Policy policy = train::policy_of(config, degrees);
    const GradientSums sums = gradient_sums_of(layout, degrees, policy);
    const auto count = [&](const RankSet& set) { return position_in(set, {}, degrees).count; };
    fmt::print("  {:<17} {}; gradients of {} summed; state in {}\n", what, held,
               counted(count(sums.all), "rank"), counted(count(sums.shards), "part"));
  };
  const std::string stages = degrees.pipe > 1 ? fmt::format("1/{} of the layers", degrees.pipe)
                                              : std::string("all layers");
  const std::string cut =
      degrees.tensor > 1 ? fmt::format("{}, each cut in {}", stages, degrees.tensor) : stages;
  line("dense parameters", Layout({1}), cut);
  if (!config.model.has_experts()) return;
  const int64_t each = config.model.experts / degrees.expert;
  line("experts", Layout({config.model.experts}, {{Axis::Expert, 0}}),
       fmt::format("{} of {} in {}", each, config.model.experts, cut));
}

}  // namespace

int train_check(const std::vector<std::string>& args) {
  auto config = load_config(args.at(0), {args.begin() + 1, args.end()});
  const config::Config asked = config;
  const bool on_servers = config.sync.on_servers();
  if (on_servers)
    config = train::with_worker_rows(train::config_of_worker(config), num_workers(config));
  const int ranks =
      on_servers ? train::degrees_of_worker(config).world() : train::planned_ranks(config);
  const Degrees degrees = refuse_early(config, ranks);
  const auto model = models::make_whole(config, degrees);
  int64_t count = 0, trained = 0;
  for (const auto& one : nn::parameters_of(*model)) {
    const int64_t elements = Box{{}, one.layout.whole()}.numel();
    count += elements;
    if (one.tensor.requires_grad()) trained += elements;
  }
  const bool gpu = train::uses_cuda(config);
  train::Footprint memory =
      train::footprint(config, *model, degrees, gpu ? c10::DeviceType::CUDA : c10::DeviceType::CPU);
  if (on_servers) {  // which have the state and save it; what a rank pushes lies beside its
                     // gradients
    memory.gradients += memory.parameters;
    memory.optimizer = memory.copy = 0;
  }
  check_run_folder(config);
  if (train::own_rank() != 0) return 0;
  const std::string adapters =
      config.lora.rank == 0 ? "" : fmt::format(" ({} of adapters are trained)", trained);
  fmt::print("{}: {} parameters{}, {}\n", config.model.kind, count, adapters,
             to_string(config.precision.compute));
  if (on_servers) {
    const auto states = static_cast<int64_t>(train::server_rule(asked)->state().arrays.size());
    const int64_t bytes = asked.precision.compute == config::Dtype::Float64 ? 8 : 4;
    const int64_t copies = 1 + asked.sync.copies;
    fmt::print("each server: about {} of weights and optimizer state\n",
               core::format_bytes(trained * bytes * (1 + states) * copies / asked.sync.servers));
  }
  if (on_servers)
    fmt::print("{}, {}; each worker is a\n", counted(asked.sync.servers, "server"),
               counted(num_workers(asked), "worker"));
  fmt::print("mesh of {}: pipe {} x replica {} x shard {} x context {} x tensor {}{}\n",
             counted(ranks, "rank"), degrees.pipe, degrees.replica, degrees.shard, degrees.context,
             degrees.tensor, degrees.expert > 1 ? fmt::format(", expert {}", degrees.expert) : "");
  print_axes(config, degrees);
  if (degrees.context > 1)
    fmt::print(
        "sequences of {} positions: {} on a rank, a piece of the head and one of the tail; "
        "attention by context.kind = \"{}\"\n",
        config.model.seq, head_and_tail(config.model.seq, degrees.context, 0).count(),
        to_string(config.context.kind));
  if (on_servers) {
    Degrees all = degrees;
    all.replica = static_cast<int>(num_workers(asked));
    print_batches(train::config_of_worker(asked), all);
  } else {
    print_batches(config, degrees);
  }
  check_data(config);
  const bool step_long = degrees.pipe > 1 && config.pipeline.keep_gathered;
  fmt::print(
      "{}",
      to_text(memory, {.gpu = gpu, .offload = config.memory.offload == config::Offload::Optimizer},
              step_long ? "over a step" : "of the layers at work and the next"));
  return 0;
}

}  // namespace trireme::cli
