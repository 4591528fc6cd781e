#pragma once

#include "trireme/checkpoint/state.h"
#include "trireme/core/json.h"
#include "trireme/mesh/mesh.h"
#include "trireme/optim/resumable.h"
#include "trireme/parallel/attached.h"

namespace trireme::train {

/// Everything that must be saved of a model and its optimizer to go on as if nothing had happened:
/// parameters, buffers, the optimizer's tensors and counts, the order in which gradients are
/// reduced. Whichever mesh saved it, any other loads it. Collective.
checkpoint::State state_of(parallel::Attached& attached, optim::Resumable& optimizer);

/// Throws ConfigError if another optimizer made the checkpoint.
void check_same_optimizer(const optim::Resumable& optimizer, const core::Json& extra);

/// The other direction: the tensors of `state_of` are loaded, the rest is here. Collective.
void restore(parallel::Attached& attached, optim::Resumable& optimizer, const core::Json& extra);

}  // namespace trireme::train
