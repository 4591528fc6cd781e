#pragma once

#include <functional>
#include <memory>

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/model.h"
#include "trireme/train/stop_signals.h"

namespace trireme::train {

/// Makes the model on a mesh.
using ModelFactory = std::function<std::shared_ptr<nn::ModelImpl>(const Mesh& mesh)>;

/// Trains as the configuration says, from the newest checkpoint or from the beginning, and writes
/// the files of the run. Returns the exit code: 0, or 143 after SIGTERM. Collective.
int run(const config::Config& config, const comm::Communicator& world, const ModelFactory& model,
        const StopSignals& signals);

}  // namespace trireme::train
