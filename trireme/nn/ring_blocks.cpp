#include "trireme/nn/ring_blocks.h"

namespace trireme::nn {

// A range of queries sees the first columns of the keys; neighbours that see the same are one
// block.
std::vector<RingBlock> ring_blocks(const Positions& queries, const Positions& keys) {
  if (queries.count() == 0 || keys.count() == 0) return {};
  if (queries == keys) return {{{0, queries.count()}, {0, keys.count()}, true}};
  std::vector<RingBlock> blocks;
  int64_t column = 0;
  for (const Range& some : queries.ranges()) {
    int64_t seen = 0;
    for (const Range& one : keys.ranges())
      if (one.begin < some.begin) seen += one.count;
    const bool goes_on = !blocks.empty() && blocks.back().keys.count == seen;
    if (seen > 0 && goes_on) blocks.back().queries.count += some.count;
    if (seen > 0 && !goes_on) blocks.push_back({{column, some.count}, {0, seen}});
    column += some.count;
  }
  return blocks;
}

}  // namespace trireme::nn
