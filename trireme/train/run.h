#pragma once

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/train/stop_signals.h"
#include "trireme/train/trainer.h"

namespace trireme::train {

/// Trains as the configuration says, from the newest checkpoint or from the beginning, and writes
/// the files of the run. Returns the exit code: 0, 143 after SIGTERM, 129 after SIGHUP, 141 where
/// nobody reads stdout any more. Collective.
int run(const config::Config& config, const comm::Communicator& world, const ModelFactory& model,
        const StopSignals& signals);

}  // namespace trireme::train
