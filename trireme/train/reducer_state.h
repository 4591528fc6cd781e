#pragma once

#include "trireme/checkpoint/state.h"
#include "trireme/format/load.h"
#include "trireme/parallel/attached.h"

namespace trireme::train {

/// Adds what the reducer keeps from step to step: the residuals of compressed gradients, for
/// instance. It belongs to one rank of one mesh, and is saved under `reducer/` (see name_of).
/// Collective.
void add_reducer(checkpoint::State& state, parallel::Attached& attached);

/// Restores what was saved. Loading has filled the tensors of the same mesh. On another one the
/// residuals of all ranks are added up, in the coordinates of the whole parameter; of the ranks
/// that sum a gradient the first gets the sum, and the others begin with 0. So nothing that was not
/// sent yet is lost.
void restore_reducer(parallel::Attached& attached, format::Checkpoint& saved);

}  // namespace trireme::train
