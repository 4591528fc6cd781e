#include <fmt/format.h>

#include "cli/rank_commands.h"
#include "models/registry.h"
#include "trireme/config/load.h"
#include "trireme/config/mesh.h"
#include "trireme/core/units.h"
#include "trireme/train/datasets.h"
#include "trireme/train/footprint.h"
#include "trireme/train/run.h"
#include "trireme/train/stages.h"
#include "trireme/train/trainer.h"
#include "trireme/train/world.h"

namespace trireme::cli {

void refuse_early(const config::Config& config) {
  train::refuse_unbuilt(config);
  const Degrees degrees = config::resolve_mesh(config.mesh, train::num_ranks(config));
  if (degrees.tensor > 1) models::make_whole(config, degrees);
}

int train(const std::vector<std::string>& args) {
  const train::StopSignals signals;  // before any other thread
  const auto config = config::load(args.at(0), {args.begin() + 1, args.end()});
  refuse_early(config);
  return train::with_ranks(config, [&](const comm::Communicator& world) {
    const auto model = [&](const Mesh& mesh) { return models::make_model(config, mesh); };
    return train::run(config, world, model, signals);
  });
}

int train_check(const std::vector<std::string>& args) {
  const auto config = config::load(args.at(0), {args.begin() + 1, args.end()});
  train::refuse_unbuilt(config);
  train::make_dataset(config);
  if (config.eval.every > 0) train::make_valid_dataset(config);
  const int ranks = config::wanted_ranks(config.mesh);
  const Degrees degrees = config::resolve_mesh(config.mesh, ranks);
  const auto model = models::make_whole(config, degrees);
  int64_t count = 0;
  for (const auto& one : nn::parameters_of(*model)) count += Box{{}, one.layout.whole()}.numel();
  const train::Footprint memory = train::footprint(config, *model, degrees);
  const int64_t samples = degrees.replica * degrees.shard;
  const auto line = [](const char* what, int64_t bytes, const std::string& note = "") {
    fmt::print("  {:<22}{:>10}{}{}\n", what, core::format_bytes(bytes), note.empty() ? "" : "   ",
               note);
  };
  fmt::print("{}: {} parameters, {}\n", config.model.kind, count, config.precision.compute);
  fmt::print("mesh of {} ranks: pipe {} x replica {} x shard {} x context {} x tensor {}\n", ranks,
             degrees.pipe, degrees.replica, degrees.shard, degrees.context, degrees.tensor);
  fmt::print("batches of {} samples: {} a rank, in micro-batches of at most {}\n",
             config.batch.global, (config.batch.global + samples - 1) / samples,
             config.batch.micro);
  if (degrees.pipe > 1) {
    const auto schedule = train::schedule_of(config, degrees);
    fmt::print("a pipeline of {} stages: {} micro-batch{} by {}{}\n", schedule.stages(),
               schedule.micros, schedule.micros == 1 ? "" : "es", schedule.name,
               config.pipeline.balance == "time"
                   ? "; stages will be even in time, here in parameters"
                   : "");
  }
  fmt::print("tensors of the fullest rank, at most:\n");
  line("parameters", memory.parameters);
  line("gradients", memory.gradients);
  line("optimizer", memory.optimizer);
  if (memory.gathered > 0)
    line("gathered weights", memory.gathered,
         degrees.pipe > 1 && config.pipeline.keep_gathered ? "over a step"
                                                           : "of the layers at work and the next");
  line("activations", memory.activations);
  line("together", memory.without_copy(), "and about 110 MiB for libtorch, mostly shared");
  line("copy while saving", memory.copy, "this rank's share of the state");
  return 0;
}

}  // namespace trireme::cli
