#pragma once

#include <string>

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/train/trainer.h"

namespace trireme::train {

/// Fills the weights of a new run with those of model.from, on any mesh: each rank reads its own
/// pieces. Returns a line for people. Throws ConfigError, the same on all ranks, for a tensor that
/// is missing, too many or of another shape. Collective.
std::string load_first_weights(const config::Config& config, const comm::Communicator& world,
                               Trainer& trainer);

/// Tells the weights of model.from from others (exchange::fingerprint). Collective.
std::string fingerprint_of_first_weights(const config::Config& config,
                                         const comm::Communicator& world);

}  // namespace trireme::train
