#pragma once

#include <memory>

#include "trireme/config/config.h"
#include "trireme/mesh/mesh.h"
#include "trireme/parallel/balance.h"
#include "trireme/parallel/pipeline.h"

namespace trireme::train {

/// Into how many micro-batches so many rows are cut.
int64_t micros_of(int64_t rows, int64_t most);

/// The schedule that a configuration asks for on such a mesh, by name or from a file; with the cut
/// of the fullest rank's rows. Throws ConfigError where there is none that can run.
pipeline::Schedule schedule_of(const config::Config& config, const Degrees& degrees);

/// Cuts the model into the schedule's stages, balanced by `how`. Throws ConfigError, with the keys
/// that ask for it, where the model has no such cut. Collective.
parallel::StageSizes cut_of(const config::Config& config, const Mesh& mesh, nn::ModelImpl& model,
                            const pipeline::Schedule& schedule, const config::Balance& how);

/// A pipeline of the configuration's schedule and balance. Collective.
std::unique_ptr<parallel::Pipeline> make_pipeline(const config::Config& config, const Mesh& mesh,
                                                  nn::ModelImpl& model,
                                                  parallel::PipelineOptions options);

}  // namespace trireme::train
