#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme {

/// Elements [begin, begin + count).
struct Range {
  int64_t begin = 0, count = 0;
  bool operator==(const Range&) const = default;
};

/// Cuts `size` things into contiguous `parts` that differ by at most one, the larger ones first
/// (6 over 4: 2, 2, 1, 1), and returns part `index`. Heads, rows, batches and samples are all cut
/// by this rule.
constexpr Range even_range(int64_t size, int64_t parts, int64_t index) {
  const int64_t least = size / parts, larger = size % parts;
  return {index * least + std::min(index, larger), least + (index < larger ? 1 : 0)};
}

}  // namespace trireme
