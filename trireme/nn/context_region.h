#pragma once

#include "trireme/comm/communicator.h"

namespace trireme::nn {

/// How attention reaches the positions of the other ranks that share a sequence.
///
///   Ring      keys and values travel from rank to rank while the block before them is computed
///   Ulysses   an all-to-all gives each rank all positions of some of the heads, another one gives
///             the results back
///   Gather    every rank gathers all keys and values: the simple one, which the others are held
///             against
enum class ContextKind : uint8_t { Ring, Ulysses, Gather };

/// The ranks that have the positions of a sequence together: the context axis of a mesh.
struct ContextRegion {
  comm::Communicator group;
  ContextKind kind = ContextKind::Ring;
};

}  // namespace trireme::nn
