#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/ps/ids.h"

namespace trireme::sim {

/// What the workers did and saw, written down by themselves: the only evidence that checkers use.
///
/// The ledger is a table with one element per range and batch. Doing a batch adds 1 to its element
/// in every range. So a read of the ledger is a list of the batches that it saw.
struct Write {
  uint32_t worker = 0;
  ps::Life life = 0;
  ps::Clock clock = 0;
  ps::Batch batch = 0;
  uint32_t generation = 0;
  ps::Time begin{};
  ps::Time end = ps::Time::max();  ///< acknowledged; max: never
};

struct Read {
  uint32_t worker = 0;
  ps::Life life = 0;
  ps::Clock clock = 0;
  uint32_t generation = 0;
  ps::Time begin{}, end{};
  std::vector<std::vector<double>> ledger = {};  ///< by range, by batch
  std::vector<double> counters = {};             ///< of the sparse table, by key
};

struct History {
  std::vector<Write> writes;
  std::vector<Read> reads;
};

}  // namespace trireme::sim
