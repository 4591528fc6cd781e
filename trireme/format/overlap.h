#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme::format {

/// Elements [begin, begin + count), in row-major order, of a box of the whole.
struct BoxRange {
  std::vector<int64_t> offset, shape;
  int64_t begin = 0, count = 0;
};

/// Calls visit(at_a, at_b, count) for every run of elements that is contiguous in both `a` and `b`;
/// at_a counts from a's first element, at_b from b's. Runs come in row-major order.
///
///        a: columns 0-3      b: columns 2-5      runs: 2 elements in each row; one run of
///        x x x x . .         . . y y y y         everything where both are rows in full
void for_each_common_run(const BoxRange& a, const BoxRange& b,
                         const std::function<void(int64_t, int64_t, int64_t)>& visit);

/// An upper bound of the number of runs.
int64_t most_common_runs(const BoxRange& a, const BoxRange& b);

}  // namespace trireme::format
