#pragma once

#include <functional>
#include <memory>

#include "trireme/config/config.h"
#include "trireme/core/trace.h"
#include "trireme/layout/reduction.h"
#include "trireme/nn/model.h"
#include "trireme/nn/recompute.h"
#include "trireme/parallel/attached.h"
#include "trireme/parallel/balance.h"
#include "trireme/parallel/compress_options.h"
#include "trireme/worker/server_parallel.h"

namespace trireme::train {

/// Makes the model as this rank of the mesh holds it.
using ModelFactory = std::function<std::shared_ptr<nn::ModelImpl>(const Mesh& mesh)>;

/// Makes the model; without memory if its state will be sharded or cut into stages.
std::shared_ptr<nn::ModelImpl> build(const ModelFactory& model, const Mesh& mesh);

/// How the configuration keeps the state of parameters on a mesh of these degrees.
Policy policy_of(const config::Config& config, const Degrees& degrees);

/// How the configuration compresses gradients.
parallel::CompressOptions compress_of(const config::Config& config);

/// Throws ConfigError if a pattern of precision.keep, compress.keep or optim.groups matches no
/// parameter of the model.
void check_patterns(const config::Config& config, const nn::ModelImpl& model);

struct AttachOptions {
  /// How the pipeline was cut into stages before, because balancing by time again could differ.
  parallel::StageSizes cut = {};
  std::shared_ptr<core::Trace> trace = nullptr;
  /// Of the layers that are recomputed, except where their backward follows at once; may be null.
  nn::RecomputeSwitchPtr recompute = nullptr;
  /// How gradients are summed; null: as the configuration says.
  std::shared_ptr<parallel::Reducer> reducer = nullptr;
  /// Not null: weights live on servers, which update them. Called once, with what is attached; the
  /// caller then calls `begin` before each step.
  std::function<std::unique_ptr<ps::ServerParallel>(parallel::Attached&)> on_servers = {};
  int workers = 1;  ///< of the servers: this mesh has the rows of one of them
};

/// Attaches what the configuration asks for: a Pipeline if the mesh has a pipe axis, FullySharded
/// if state is sharded, else DataParallel. Collective.
std::unique_ptr<parallel::Attached> attach(const config::Config& config, const Mesh& mesh,
                                           nn::ModelImpl& model, const AttachOptions& options);

}  // namespace trireme::train
