#include "trireme/train/announce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "trireme/config/text.h"
#include "trireme/core/log.h"

namespace trireme::train {

namespace {

/// Do replicas claim batches of their own? Otherwise all ranks share each batch.
bool claims_batches(const config::Config& config, const Trainer& trainer) {
  return trainer.replicas() && config.sync.seconds > 0;
}

void warn_of_small_batches(const config::Config& config, const Trainer& trainer,
                           int64_t all_samples) {
  const core::Log log(0, "data");
  const int64_t batch = std::min(config.batch.global, all_samples);
  if (batch < config.batch.global)
    log.warning(fmt::format(
        "the data has {} sample{}{}, fewer than batch.global = {}: every step sees {}", batch,
        batch == 1 ? "" : "s",
        config.model.has_images() ? "" : fmt::format(" of model.seq = {}", config.model.seq),
        config.batch.global, batch == 1 ? "the same one" : "all of them"));
  const bool claims = claims_batches(config, trainer);
  const int64_t shared =
      claims ? std::min(config.batch.global / trainer.replicas()->count(), all_samples) : batch;
  const int64_t ranks = (claims ? trainer.replicas()->replica : trainer.mesh()).samples().size();
  if (shared < ranks)
    log.warning(fmt::format("a batch has {} samples for {} ranks: {} of them have nothing to do",
                            shared, ranks, ranks - shared));
}

void announce_meetings(const config::Sync& sync, int replicas, int64_t steps) {
  fmt::print("{} on {} own and meet{} every {} ({})\n",
             replicas == 1 ? "1 replica trains" : fmt::format("{} replicas train", replicas),
             replicas == 1 ? "its" : "their", replicas == 1 ? "s" : "",
             sync.seconds > 0  ? fmt::format("{} s", sync.seconds)
             : sync.every == 1 ? std::string("step")
                               : fmt::format("{} steps", sync.every),
             to_string(sync.kind));
  const core::Log log(0, "sync");
  if (replicas == 1)
    log.warning(fmt::format("there is one replica, which meets nobody: set mesh.replica={}",
                            2 * sync.inner_group));
  if (sync.fragments > 1 || sync.delay > 0)
    log.warning("fragments that have not met at the end of the run are not in its common weights");
  else if (sync.seconds == 0 && steps % sync.every != 0)
    log.warning(fmt::format(
        "run.steps = {} is no multiple of sync.every = {}: the last {} will not be "
        "in the common weights",
        steps, sync.every,
        steps % sync.every == 1 ? "step" : fmt::format("{} steps", steps % sync.every)));
}

}  // namespace

void announce(const config::Config& config, const Trainer& trainer, const data::Dataset& dataset,
              int64_t steps) {
  const Mesh& mesh = trainer.mesh();
  const comm::Communicator& world = mesh.world();
  const bool cut = mesh.degrees().replica != world.size() || mesh.degrees().expert > 1;
  const int64_t batch = std::min(config.batch.global, dataset.size());
  const auto millions = [](int64_t count) { return static_cast<double>(count) / 1e6; };
  const std::string trained =
      config.lora.rank == 0
          ? ""
          : fmt::format(" ({:.2f}M of adapters are trained)", millions(trainer.num_trained()));
  fmt::print("{}, {:.2f}M parameters{}, {} rank{}{} over {}; batches of {} sample{}; {}\n",
             config.model.kind, millions(trainer.num_parameters()), trained, world.size(),
             world.size() == 1 ? "" : "s",
             cut ? fmt::format(" ({})", to_string(mesh.degrees())) : "", world.backend(), batch,
             batch == 1 ? "" : "s", config.run.dir);
  warn_of_small_batches(config, trainer, dataset.size());
  std::fputs(trainer.attached().description().c_str(), stdout);
  if (trainer.replicas()) announce_meetings(config.sync, trainer.replicas()->count(), steps);
  if (dataset.floor())
    fmt::print("lowest possible loss: {:.4f} nats (the data's entropy)\n", *dataset.floor());
  std::fflush(stdout);
}

}  // namespace trireme::train
