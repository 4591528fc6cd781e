#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme::comm {

/// What a rank really moved: counted where the bytes move, not where they are planned.
struct Traffic {
  int64_t sent_bytes = 0;      ///< to other ranks: through a stream, or written into their memory
  int64_t received_bytes = 0;  ///< from other ranks: through a stream, or read in their memory
  int64_t messages = 0;
  int steps = 0;  ///< the longest chain of transfers that waited for one another, in any one op

  void saw_step(int step) { steps = std::max(steps, step); }
};

}  // namespace trireme::comm
