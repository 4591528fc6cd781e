#pragma once

#include <functional>
#include <memory>

#include "trireme/config/config.h"
#include "trireme/core/trace.h"
#include "trireme/layout/reduction.h"
#include "trireme/nn/model.h"
#include "trireme/parallel/attached.h"
#include "trireme/parallel/balance.h"

namespace trireme::train {

/// Makes the model as this rank of the mesh holds it.
using ModelFactory = std::function<std::shared_ptr<nn::ModelImpl>(const Mesh& mesh)>;

/// The model; where its state will be sharded or staged, without memory yet.
std::shared_ptr<nn::ModelImpl> build(const ModelFactory& model, const Mesh& mesh);

/// What the configuration decides about the state of a parameter on such a mesh.
Policy policy_of(const config::Config& config, const Degrees& degrees);

struct AttachOptions {
  /// How a pipeline was cut into stages before: balancing by time again could differ.
  parallel::StageSizes cut = {};
  std::shared_ptr<core::Trace> trace = nullptr;
  std::shared_ptr<parallel::Reducer> reducer = nullptr;  ///< none: sums gradients as they are
};

/// Attaches what keeps the ranks of the mesh one model: a Pipeline where there is a pipe axis, else
/// FullySharded or DataParallel. Collective.
std::unique_ptr<parallel::Attached> attach(const config::Config& config, const Mesh& mesh,
                                           nn::ModelImpl& model, const AttachOptions& options);

}  // namespace trireme::train
