#pragma once

#include <cstdint>
#include <optional>

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/train/attach.h"
#include "trireme/train/stop_signals.h"

namespace trireme::train {

/// Post-local runs have two phases: replicas in lockstep up to step `sync.after`, then on their
/// own. Others have the second.
enum class Phase : uint8_t { Lockstep, Main };

/// Trains from the step that the run has reached to the last step of the phase. Returns the exit
/// code of the run; nothing if only the phase is over, and saved. Collective.
std::optional<int> run_phase(const config::Config& config, const comm::Communicator& world,
                             const ModelFactory& model, const StopSignals& signals, Phase phase);

}  // namespace trireme::train
