#pragma once

#include <memory>

#include "trireme/config/config.h"
#include "trireme/mesh/mesh.h"
#include "trireme/parallel/pipeline.h"

namespace trireme::train {

/// Into how many micro-batches so many rows are cut.
int64_t micros_of(int64_t rows, int64_t most);

/// The schedule that a configuration asks for on such a mesh, by name or from a file; with the cut
/// of the fullest rank's rows. Throws ConfigError where there is none that can run.
pipeline::Schedule schedule_of(const config::Config& config, const Degrees& degrees);

/// A pipeline of the configuration's schedule and balance. Collective.
std::unique_ptr<parallel::Pipeline> make_pipeline(const config::Config& config, const Mesh& mesh,
                                                  nn::ModelImpl& model,
                                                  parallel::PipelineOptions options);

}  // namespace trireme::train
