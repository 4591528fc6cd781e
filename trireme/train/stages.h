#pragma once

#include <memory>

#include "trireme/config/config.h"
#include "trireme/mesh/mesh.h"
#include "trireme/parallel/balance.h"
#include "trireme/parallel/pipeline.h"
#include "trireme/pipeline/periodic.h"

namespace trireme::train {

/// Is it the name of a schedule that can be made, and not a file?
bool is_schedule_name(const std::string& schedule);

/// The micro-batches of a step, of the rank with most rows.
int num_micros_of(const config::Config& config, const Degrees& degrees);

/// Does the configuration ask for a pipeline that does not drain between steps?
bool is_asynchronous(const config::Config& config, const Degrees& degrees);

/// The schedule of an asynchronous pipeline. Throws ConfigError, with the numbers, if it cannot run
/// or does not go with other keys.
pipeline::PeriodicSchedule periodic_schedule_of(const config::Config& config,
                                                const Degrees& degrees);

/// The schedule that a configuration asks for, by name or from a file, for the micro-batches of the
/// rank with most rows; of an asynchronous pipeline, enough steps to fill it. Throws ConfigError if
/// no such schedule can run.
pipeline::Schedule schedule_of(const config::Config& config, const Degrees& degrees);

/// Cuts the model into the schedule's stages, balanced by `how`. Throws ConfigError, with the keys
/// of the configuration, if the model cannot be cut so. Collective.
parallel::StageSizes cut_of(const config::Config& config, const Mesh& mesh, nn::ModelImpl& model,
                            const pipeline::Schedule& schedule, const config::Balance& how);

/// Makes the pipeline of the configuration's schedule and balance. Collective.
std::unique_ptr<parallel::Pipeline> make_pipeline(const config::Config& config, const Mesh& mesh,
                                                  nn::ModelImpl& model,
                                                  parallel::PipelineOptions options);

}  // namespace trireme::train
