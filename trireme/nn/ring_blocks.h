#pragma once

#include <vector>

#include "trireme/layout/positions.h"

namespace trireme::nn {

/// Some columns of the queries of one rank against some columns of the keys of another. All of
/// these queries see all of these keys, or, if it is causal, both are the same positions.
struct RingBlock {
  Range queries, keys;
  bool causal = false;
};

/// The blocks of one rank's queries and one rank's keys, both as head_and_tail deals them. Keys
/// that no query sees are in none.
std::vector<RingBlock> ring_blocks(const Positions& queries, const Positions& keys);

}  // namespace trireme::nn
