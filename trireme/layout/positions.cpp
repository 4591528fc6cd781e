#include "trireme/layout/positions.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme {

Positions Positions::from(int64_t begin) {
  Positions open;
  open.begin_ = begin;
  return open;
}

Positions::Positions(std::vector<Range> ranges, int64_t whole) : whole_(whole) {
  int64_t end = 0;
  for (const Range& one : ranges) {
    core::check(one.count >= 0 && one.begin >= (one.count == 0 ? 0 : end),
                "positions: {} from {} on do not follow those before {}", one.count, one.begin,
                end);
    if (one.count == 0) continue;
    if (!ranges_.empty() && one.begin == end)
      ranges_.back().count += one.count;
    else
      ranges_.push_back(one);
    end = one.begin + one.count;
  }
  core::check(end <= whole, "positions up to {} are not in a sequence of {}", end, whole);
}

Positions Positions::of(int64_t columns) const {
  if (is_open()) return {{{begin_, columns}}, begin_ + columns};
  core::check(count() == columns,
              "a tensor of {} positions, but this rank has {} ({}): pass on the Flow of the layer "
              "before, not only its tensor",
              columns, count(), to_string(*this));
  return *this;
}

int64_t Positions::count() const {
  int64_t count = 0;
  for (const Range& one : ranges_) count += one.count;
  return count;
}

Positions Positions::narrow(Range columns) const {
  std::vector<Range> some;
  int64_t column = 0;  // of the range's first position
  for (const Range& one : ranges_) {
    const int64_t begin = std::max(columns.begin, column);
    const int64_t end = std::min(columns.begin + columns.count, column + one.count);
    if (begin < end) some.push_back({one.begin + begin - column, end - begin});
    column += one.count;
  }
  return {std::move(some), whole_};
}

std::vector<int64_t> Positions::each() const {
  std::vector<int64_t> all;
  for (const Range& one : ranges_)
    for (int64_t i = 0; i < one.count; ++i) all.push_back(one.begin + i);
  return all;
}

Positions head_and_tail(int64_t whole, int size, int rank) {
  const int64_t pieces = 2 * static_cast<int64_t>(size);
  return {{even_range(whole, pieces, rank), even_range(whole, pieces, pieces - 1 - rank)}, whole};
}

std::string to_string(const Positions& positions) {
  if (positions.is_open()) return fmt::format("from {} on", positions.first());
  std::string text;
  for (const Range& one : positions.ranges())
    text += fmt::format("{}{}-{}", text.empty() ? "" : ", ", one.begin, one.begin + one.count - 1);
  return fmt::format("{} of {}", text.empty() ? "none" : text, positions.whole());
}

}  // namespace trireme
