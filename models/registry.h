#pragma once

#include <memory>

#include "trireme/config/config.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/model.h"

namespace trireme::models {

/// The model that a configuration names. Throws ConfigError for one that is not built here.
std::shared_ptr<nn::ModelImpl> make_model(const config::Model& wanted, const Mesh& mesh);

}  // namespace trireme::models
