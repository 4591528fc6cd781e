#pragma once

#include <functional>
#include <optional>
#include <string>

#include "trireme/checkpoint/state.h"
#include "trireme/comm/communicator.h"
#include "trireme/format/load.h"

namespace trireme::checkpoint {

/// Throws ConfigError if a checkpoint is complete but belongs to another run.
using FitCheck = std::function<void(const format::Checkpoint& saved)>;

/// Fills tensors from a checkpoint, by `load`. Not collective. May try a second time, with another.
using Loading = std::function<void(format::Checkpoint& saved)>;

/// Loads the newest complete checkpoint in `folder`, and returns it; nullopt if there is none.
/// Every byte is read about once: each rank reads what it needs, and verifies it while reading. If
/// one rank finds damage, all ranks skip the checkpoint: a warning names it, it is moved aside, and
/// the previous one is tried. Throws CheckpointError if all are damaged, format::UnreadableError if
/// a file cannot be read just now (no descriptors, no permission, a disk error; nothing is moved
/// aside), and ConfigError if one has a newer version or does not fit. Collective.
std::optional<format::Checkpoint> load_newest(const std::string& folder,
                                              const comm::Communicator& group,
                                              const Loading& loading);
/// The same for the tensors of a state, if `fits` does not throw.
std::optional<format::Checkpoint> load_newest(const std::string& folder, const State& state,
                                              const comm::Communicator& group,
                                              const FitCheck& fits = {});

/// Opens the checkpoint at a path such as .../step-00000500. Throws ConfigError if there is none,
/// or if it was never finished.
format::Checkpoint open(const std::string& path);

/// Fills the tensors of `state` from a checkpoint and verifies every byte. Floating-point numbers
/// are rounded to the precision of the tensor. Throws ConfigError for the first name, shape or
/// dtype that does not fit.
void load(format::TensorSource& from, const State& state);

}  // namespace trireme::checkpoint
