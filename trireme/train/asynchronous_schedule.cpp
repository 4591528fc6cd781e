#include <fmt/format.h>

#include "trireme/core/error.h"
#include "trireme/train/stages.h"

namespace trireme::train {

namespace {

/// What an asynchronous pipeline cannot do, and what to set instead.
void check_keys(const config::Config& config, const Degrees& degrees, const std::string& asked) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(fmt::format("{}: {}", asked, why));
  };
  if (config.optim.clip > 0)
    refuse(fmt::format(
        "optim.clip = {:g} needs the norm of all gradients, but the stages are never at the same "
        "update: set optim.clip=0",
        config.optim.clip));
  if (config.precision.compute == config::Dtype::Float16)
    refuse(
        "precision.compute = \"float16\" skips a step on all stages if a gradient overflows, but "
        "the others have made the update already: use bfloat16 or float32");
  if (degrees.shard > 1)
    refuse(fmt::format(
        "it keeps several versions of whole weights, but mesh.shard = {} cuts them: set "
        "mesh.shard=1, and mesh.replica for more ranks",
        degrees.shard));
  if (config.compress.transfers != config::Narrow::None)
    refuse(fmt::format(
        "compress.transfers = \"{}\" would round the loss and the weight that travel with the "
        "gradients: leave it out",
        to_string(config.compress.transfers)));
  if (config.model.has_attention() && config.model.tie)
    refuse(
        "model.tie = true shares a weight between the first and the last stage, which update it at "
        "different times: set model.tie=false");
}

}  // namespace

bool is_asynchronous(const config::Config& config, const Degrees& degrees) {
  const std::string& name = config.pipeline.schedule;
  return degrees.pipe > 1 && is_schedule_name(name) && !pipeline::is_synchronous(name);
}

pipeline::PeriodicSchedule periodic_schedule_of(const config::Config& config,
                                                const Degrees& degrees) {
  const std::string& name = config.pipeline.schedule;
  const std::string asked =
      fmt::format("pipeline.schedule = \"{}\" on pipe {}", name, degrees.pipe);
  check_keys(config, degrees, asked);
  try {
    const auto schedule = pipeline::make_periodic(
        name,
        {.ranks = degrees.pipe,
         .micros = num_micros_of(config, degrees),
         .stages_per_rank = static_cast<int>(config.pipeline.stages_per_rank)},
        config.pipeline.vertical_sync ? pipeline::VersionSync::Vertical
                                      : pipeline::VersionSync::Stage);
    verify(schedule);
    return schedule;
  } catch (const ScheduleError& error) {
    throw ConfigError(fmt::format("{}: {} (batch.global = {} in micro-batches of batch.micro = {})",
                                  asked, error.what(), config.batch.global, config.batch.micro));
  }
}

}  // namespace trireme::train
