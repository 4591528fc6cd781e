#pragma once

#include <memory>
#include <string>

#include "trireme/checkpoint/state.h"
#include "trireme/config/config.h"
#include "trireme/format/load.h"
#include "trireme/nn/model.h"

namespace trireme::infer {

/// The checkpoint that a path means: a step's folder; or the newest step of a folder of steps, or
/// of a run. Throws ConfigError where there is none.
std::string find_checkpoint(const std::string& path);

/// The configuration with which a checkpoint was trained: the one that is saved in it, or
/// config.toml of the run that it lies in. Throws ConfigError where there is neither.
config::Config config_of(const format::Checkpoint& checkpoint);

/// The parameters and buffers of a model, as a checkpoint names them: of a model that is cut, this
/// rank's part.
checkpoint::State weights_of(const nn::ModelImpl& model);

/// Makes this rank's part of a model with the weights of a checkpoint, for use and not for
/// training.
std::shared_ptr<nn::ModelImpl> load_model(
    format::Checkpoint& from, const Mesh& mesh, at::ScalarType dtype,
    const std::function<std::shared_ptr<nn::ModelImpl>(const Mesh& mesh)>& make);

}  // namespace trireme::infer
