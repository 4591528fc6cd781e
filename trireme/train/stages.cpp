#include "trireme/train/stages.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>

#include "trireme/core/error.h"
#include "trireme/layout/even_range.h"
#include "trireme/pipeline/generators.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/text.h"

namespace trireme::train {

namespace {

parallel::Balance balance_of(const config::Balance& keys) {
  using By = parallel::Balance::By;
  switch (keys.by) {
    case config::Balance::By::Time: return {.by = By::Time};
    case config::Balance::By::Parameters: return {.by = By::Parameters};
    case config::Balance::By::Layers: break;
  }
  return {.by = By::Layers, .layers = keys.layers};
}

/// Into how many micro-batches of at most `most` rows the rows are cut.
int64_t micros_of(int64_t rows, int64_t most) {
  return std::max<int64_t>(1, (rows + most - 1) / most);
}

}  // namespace

bool is_schedule_name(const std::string& schedule) {
  const auto names = pipeline::names();
  return std::find(names.begin(), names.end(), schedule) != names.end();
}

int num_micros_of(const config::Config& config, const Degrees& degrees) {
  const int64_t rows = even_range(config.batch.global, degrees.samples(), 0).count;
  return static_cast<int>(micros_of(rows, config.batch.micro));
}

pipeline::Schedule schedule_of(const config::Config& config, const Degrees& degrees) {
  if (is_asynchronous(config, degrees)) {
    const auto periodic = periodic_schedule_of(config, degrees);
    return unrolled(periodic, periodic.depth() + 1);
  }
  const int64_t rows = even_range(config.batch.global, degrees.samples(), 0).count;
  const int micros = num_micros_of(config, degrees);
  const std::string& wanted = config.pipeline.schedule;
  const std::string asked =
      fmt::format("pipeline.schedule = \"{}\" on pipe {}", wanted, degrees.pipe);
  try {
    if (is_schedule_name(wanted))
      return pipeline::make(wanted,
                            {.ranks = degrees.pipe,
                             .micros = micros,
                             .stages_per_rank = static_cast<int>(config.pipeline.stages_per_rank)});
    if (::access(wanted.c_str(), R_OK) != 0)
      throw ConfigError(fmt::format("{}: it is none of {}, and no file that can be read ({})",
                                    asked, fmt::join(pipeline::names(), ", "),
                                    core::errno_text(errno)));
    pipeline::Schedule read = pipeline::read_csv(wanted);
    if (read.ranks() != degrees.pipe)
      throw ConfigError(fmt::format("{}: the file is for {} ranks", asked, read.ranks()));
    const auto per_rank = config.pipeline.stages_per_rank;
    if (per_rank != 1 && per_rank * degrees.pipe != read.stages())
      throw ConfigError(
          fmt::format("{}: the file has {} stages, pipeline.stages_per_rank = {} are {}", asked,
                      read.stages(), per_rank, per_rank * degrees.pipe));
    if (read.micros != micros)
      throw ConfigError(fmt::format(
          "{}: the file is for {} micro-batches, but {} rows of a rank in micro-batches "
          "of batch.micro = {} are {}",
          asked, read.micros, rows, config.batch.micro, micros));
    pipeline::verify(read);
    if (read.has(pipeline::Act::Update))
      throw ConfigError(fmt::format(
          "{}: the file updates weights in the middle and then drains the pipe, but a step is one "
          "update; leave UPDATE out, or use pipedream or pipedream-2bw, which do not drain",
          asked));
    return read;
  } catch (const ScheduleError& error) {
    throw ConfigError(fmt::format("{}: {}", asked, error.what()));
  }
}

parallel::StageSizes cut_of(const config::Config& config, const Mesh& mesh, nn::ModelImpl& model,
                            const pipeline::Schedule& schedule, const config::Balance& how) {
  const config::PipelineKeys& keys = config.pipeline;
  try {
    return parallel::balance(model, mesh, balance_of(how), schedule.stages(), config.batch.micro);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format(
        "pipeline.balance = \"{}\" with mesh.pipe = {} and pipeline.stages_per_rank = {}: {}",
        to_string(keys.balance), config.mesh.pipe, keys.stages_per_rank, error.what()));
  }
}

std::unique_ptr<parallel::Pipeline> make_pipeline(const config::Config& config, const Mesh& mesh,
                                                  nn::ModelImpl& model,
                                                  parallel::PipelineOptions options) {
  pipeline::Schedule schedule = schedule_of(config, mesh.degrees());
  // Keep a cut that was measured before; a cut by parameters or by hand is computed again.
  const auto stages = static_cast<std::size_t>(schedule.stages());
  const auto places = std::accumulate(options.cut.begin(), options.cut.end(), std::size_t{0});
  if (config.pipeline.balance.by != config::Balance::By::Time || options.cut.size() != stages ||
      places != model.chain().size())
    options.cut = cut_of(config, mesh, model, schedule, config.pipeline.balance);
  if (is_asynchronous(config, mesh.degrees()))
    return std::make_unique<parallel::Pipeline>(
        model, mesh, periodic_schedule_of(config, mesh.degrees()), std::move(options));
  return std::make_unique<parallel::Pipeline>(model, mesh, std::move(schedule), std::move(options));
}

}  // namespace trireme::train
