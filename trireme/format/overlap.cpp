#include "trireme/format/overlap.h"

#include <algorithm>

namespace trireme::format {

namespace {

/// The box that two ranges have in common, in coordinates of the whole.
struct CommonBox {
  std::vector<int64_t> low, high;
  size_t run_dim = 0;  ///< dims from here on are one run
  bool empty = false;
};

/// Narrows [low, high) of the first dim to the rows that hold elements of the range.
void narrow(const BoxRange& range, int64_t& low, int64_t& high) {
  int64_t row = 1;
  for (size_t dim = 1; dim < range.shape.size(); ++dim) row *= range.shape[dim];
  low = std::max(low, range.offset[0] + range.begin / row);
  high = std::min(high, range.offset[0] + (range.begin + range.count - 1) / row + 1);
}

CommonBox common_box(const BoxRange& a, const BoxRange& b) {
  CommonBox box;
  const size_t dims = a.shape.size();
  box.empty = a.count == 0 || b.count == 0;
  for (size_t dim = 0; dim < dims && !box.empty; ++dim) {
    box.low.push_back(std::max(a.offset[dim], b.offset[dim]));
    box.high.push_back(std::min(a.offset[dim] + a.shape[dim], b.offset[dim] + b.shape[dim]));
    if (dim == 0) {
      narrow(a, box.low[0], box.high[0]);
      narrow(b, box.low[0], box.high[0]);
    }
    box.empty = box.low[dim] >= box.high[dim];
  }
  if (box.empty || dims == 0) return box;
  // A dim that both boxes have in full extends the run of the dim before it.
  box.run_dim = dims - 1;
  while (box.run_dim > 0) {
    const int64_t size = box.high[box.run_dim] - box.low[box.run_dim];
    if (size != a.shape[box.run_dim] || size != b.shape[box.run_dim]) break;
    --box.run_dim;
  }
  return box;
}

/// Row-major index of a point in the range's box.
int64_t flat(const BoxRange& range, const std::vector<int64_t>& point) {
  int64_t index = 0;
  for (size_t dim = 0; dim < point.size(); ++dim)
    index = index * range.shape[dim] + point[dim] - range.offset[dim];
  return index;
}

}  // namespace

void for_each_common_run(const BoxRange& a, const BoxRange& b,
                         const std::function<void(int64_t, int64_t, int64_t)>& visit) {
  const CommonBox box = common_box(a, b);
  if (box.empty) return;
  int64_t length = 1;
  for (size_t dim = box.run_dim; dim < box.low.size(); ++dim)
    length *= box.high[dim] - box.low[dim];
  std::vector<int64_t> point = box.low;
  while (true) {
    const int64_t in_a = flat(a, point) - a.begin, in_b = flat(b, point) - b.begin;
    const int64_t first = std::max({int64_t{0}, -in_a, -in_b});
    const int64_t last = std::min({length, a.count - in_a, b.count - in_b});
    if (first < last) visit(in_a + first, in_b + first, last - first);
    // The next run: count up the dims before run_dim.
    size_t dim = box.run_dim;
    while (dim > 0 && ++point[dim - 1] == box.high[dim - 1]) {
      point[dim - 1] = box.low[dim - 1];
      --dim;
    }
    if (dim == 0) return;
  }
}

int64_t most_common_runs(const BoxRange& a, const BoxRange& b) {
  const CommonBox box = common_box(a, b);
  int64_t runs = box.empty ? 0 : 1;
  for (size_t dim = 0; dim < box.run_dim; ++dim) runs *= box.high[dim] - box.low[dim];
  return runs;
}

}  // namespace trireme::format
