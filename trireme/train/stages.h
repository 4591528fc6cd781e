#pragma once

#include <memory>

#include "trireme/config/config.h"
#include "trireme/mesh/mesh.h"
#include "trireme/parallel/balance.h"
#include "trireme/parallel/pipeline.h"

namespace trireme::train {

/// The schedule that a configuration asks for, by name or from a file, for the micro-batches of the
/// rank with most rows. Throws ConfigError if no such schedule can run.
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
