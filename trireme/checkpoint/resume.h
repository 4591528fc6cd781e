#pragma once

#include <functional>
#include <optional>
#include <string>

#include "trireme/checkpoint/state.h"
#include "trireme/comm/communicator.h"
#include "trireme/format/load.h"

namespace trireme::checkpoint {

/// The newest whole checkpoint below `folder`, the same on all ranks; none if there is none.
/// Damaged ones are named in a warning, passed over and put aside; if there are only such, it is a
/// CheckpointError. Collective.
std::optional<std::string> find_newest(const std::string& folder, const comm::Communicator& group);

/// Fills the tensors of `state` from a checkpoint; every byte is verified. The first name, shape or
/// dtype that does not fit is a CheckpointError.
void load(format::Checkpoint& from, const State& state);

}  // namespace trireme::checkpoint
