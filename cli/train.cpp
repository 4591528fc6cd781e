#include <fmt/format.h>

#include "cli/rank_commands.h"
#include "models/registry.h"
#include "trireme/config/load.h"
#include "trireme/config/mesh.h"
#include "trireme/core/units.h"
#include "trireme/train/datasets.h"
#include "trireme/train/run.h"
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
  int64_t whole = 0, count = 0;  // of all, and of the first rank
  for (const auto& one : nn::parameters_of(*model)) {
    whole += Box{{}, one.layout.whole()}.numel();
    count += Box{{}, one.layout.local_shape({}, degrees)}.numel();
  }
  const int64_t item = config.precision.compute == "float64" ? 8 : 4;
  const int64_t states = config.optim.kind == "adamw" ? 2 : config.optim.momentum != 0 ? 1 : 0;
  const int64_t block = (config.batch.global + degrees.data() - 1) / degrees.data();
  const int64_t rows = std::min(config.batch.micro, block);
  const int64_t all = count * item * (2 + states);
  const int64_t copy = count * item * (1 + states) / degrees.data();
  const int64_t kept = model->activations_per_row() * rows * item / degrees.tensor;
  const auto line = [](const char* what, int64_t bytes, const std::string& note = "") {
    fmt::print("  {:<22}{:>10}{}{}\n", what, core::format_bytes(bytes), note.empty() ? "" : "   ",
               note);
  };
  fmt::print("{}: {} parameters, {}\n", config.model.kind, whole, config.precision.compute);
  fmt::print("mesh of {} ranks: pipe {} x replica {} x shard {} x context {} x tensor {}\n", ranks,
             degrees.pipe, degrees.replica, degrees.shard, degrees.context, degrees.tensor);
  fmt::print("batches of {} samples: {} a replica, in micro-batches of at most {}\n",
             config.batch.global, block, config.batch.micro);
  fmt::print("memory of a rank, about:\n");
  line("parameters", count * item);
  line("gradients", count * item);
  line("optimizer", count * item * states);
  line("activations", kept,
       config.memory.recompute != "none" ? "without recomputation; less with it"
       : degrees.tensor > 1 && !config.tensor.sequence
           ? "more without sequence parallelism: norms and residuals are whole"
           : "");
  line("copy while saving", copy, "this rank's share of the state");
  line("together", all + kept + copy, "and about 110 MiB for libtorch, mostly shared");
  return 0;
}

}  // namespace trireme::cli
