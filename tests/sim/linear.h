#pragma once

#include <vector>

#include "sim/history.h"

namespace trireme::sim {

/// One operation on a counter: adds 1, or reads a value. An addition without an end may or may not
/// have happened.
struct CounterOp {
  ps::Time begin{}, end = ps::Time::max();
  bool is_read = false;
  double value = 0;  ///< of a read
};

/// Whether the operations can be put in one order that respects time (what ended before another
/// began comes first) and in which every read gives the number of additions before it.
bool is_linearizable(std::vector<CounterOp> ops);

}  // namespace trireme::sim
