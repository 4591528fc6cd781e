#pragma once

#include "trireme/train/trainer.h"

namespace trireme::train {

/// Tells people what a run is about to do, and warns of what they may not have meant. Call it on
/// one rank. `steps`: of the whole run.
void announce(const config::Config& config, const Trainer& trainer, const data::Dataset& dataset,
              int64_t steps);

}  // namespace trireme::train
