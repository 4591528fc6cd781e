#pragma once

#include <memory>

#include "trireme/config/config.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/model.h"

namespace trireme::models {

/// Makes this rank's part of the model that a configuration names, with its adapters. Throws
/// ConfigError if there is no such model, or if the mesh cannot cut its sizes.
std::shared_ptr<nn::ModelImpl> make_model(const config::Config& config, const Mesh& mesh);

/// Makes the whole model on this rank alone. Throws ConfigError, with the numbers, unless a mesh of
/// these degrees could cut it. (Layouts do not depend on the mesh.)
std::shared_ptr<nn::ModelImpl> make_whole(const config::Config& config, const Degrees& degrees);

}  // namespace trireme::models
