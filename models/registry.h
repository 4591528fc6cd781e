#pragma once

#include <memory>

#include "trireme/config/config.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/model.h"

namespace trireme::models {

/// The model that a configuration names, this rank's part of it. Throws ConfigError for one that is
/// not built here, and for sizes that the mesh cannot cut.
std::shared_ptr<nn::ModelImpl> make_model(const config::Config& config, const Mesh& mesh);

/// The model whole, without any other rank. Throws ConfigError, with the numbers, unless a mesh of
/// these degrees could cut it: layouts are the same for every mesh.
std::shared_ptr<nn::ModelImpl> make_whole(const config::Config& config, const Degrees& degrees);

}  // namespace trireme::models
