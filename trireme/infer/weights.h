#pragma once

#include <functional>
#include <memory>
#include <string>

#include "trireme/checkpoint/state.h"
#include "trireme/config/config.h"
#include "trireme/format/tensor_source.h"
#include "trireme/nn/model.h"

namespace trireme::infer {

/// A trained model as it lies on the disk.
struct StoredModel {
  std::string folder;     ///< of a checkpoint's step, or Hugging Face's
  config::Config config;  ///< with which it was trained; of Hugging Face's only the model is known
};

/// The model that a path means: a Hugging Face folder, a checkpoint, or the newest step of a run.
/// Throws ConfigError where there is none.
StoredModel find_model(const std::string& path);

/// Its weights, as the model of `config` needs them.
std::unique_ptr<format::TensorSource> open_weights(const StoredModel& stored,
                                                   const config::Config& config);

/// The parameters and buffers of a model, as a checkpoint names them: of a model that is cut, this
/// rank's part.
checkpoint::State weights_of(const nn::ModelImpl& model);

/// Makes this rank's part of a model with these weights, for use and not for training.
std::shared_ptr<nn::ModelImpl> load_model(
    format::TensorSource& weights, const Mesh& mesh, at::ScalarType dtype,
    const std::function<std::shared_ptr<nn::ModelImpl>(const Mesh& mesh)>& make);

}  // namespace trireme::infer
