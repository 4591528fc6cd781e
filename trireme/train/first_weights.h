#pragma once

#include <set>
#include <string>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/train/trainer.h"

namespace trireme::train {

/// Throws ConfigError unless the tensors that a model needs and those that model.from has have the
/// same names.
void check_names(const config::Config& config, const std::set<std::string>& needed,
                 const std::vector<std::string>& there);

/// Fills the weights of a new run with those of model.from, on any mesh: each rank reads its own
/// pieces. Returns a line for people. Throws ConfigError, the same on all ranks, for a tensor that
/// is missing, too many or of another shape. Collective.
std::string load_first_weights(const config::Config& config, const comm::Communicator& world,
                               Trainer& trainer);

/// Tells the weights of model.from from others (exchange::fingerprint). Collective.
std::string fingerprint_of_first_weights(const config::Config& config,
                                         const comm::Communicator& world);

}  // namespace trireme::train
