#pragma once

#include <functional>
#include <optional>
#include <string>

#include "trireme/checkpoint/state.h"
#include "trireme/comm/communicator.h"
#include "trireme/format/load.h"

namespace trireme::checkpoint {

/// Throws ConfigError if a checkpoint, though whole, is not one for this run.
using FitCheck = std::function<void(const format::Checkpoint& saved)>;

/// Fills the tensors of `state` from the newest whole checkpoint below `folder`, and returns it;
/// nothing if there is none. Every byte is read about once: each rank reads what it needs, which is
/// verified as it is read. What a rank finds damaged is damaged for all: it is named in a warning
/// and put aside, and the one before is tried; if there are only such, it is a CheckpointError.
/// One of a newer version, or that does not fit, is no damage but a ConfigError. Collective.
std::optional<format::Checkpoint> load_newest(const std::string& folder, const State& state,
                                              const comm::Communicator& group,
                                              const FitCheck& fits = {});

/// The checkpoint that was asked for by its path: .../step-00000500. ConfigError if there is none,
/// or if it was never finished.
format::Checkpoint open(const std::string& path);

/// Fills the tensors of `state` from a checkpoint; every byte is verified. Floating-point numbers
/// of another precision are rounded to that of the tensor. The first name, shape or dtype that does
/// not fit is a ConfigError.
void load(format::Checkpoint& from, const State& state);

}  // namespace trireme::checkpoint
