#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/layout/even_range.h"

namespace trireme {

/// Which positions of a sequence a rank has: ranges in ascending order, side by side in its
/// tensors.
///
///   16 positions over 2 ranks of the context axis:     0-3 | 4-7 | 8-11 | 12-15
///
///     rank 0    0  1  2  3 12 13 14 15                 a piece of the head and one of the tail,
///     rank 1    4  5  6  7  8  9 10 11                 so that causal attention costs them the
///     same
///
/// By default all positions from 0 on, as many as a tensor has.
class Positions {
 public:
  Positions() = default;
  /// All from `begin` on, as many as a tensor has.
  static Positions from(int64_t begin);
  /// Some of the positions 0 ... whole - 1. Throws MisuseError unless the ranges ascend in it.
  Positions(std::vector<Range> ranges, int64_t whole);

  /// Those of a tensor with so many columns. Throws MisuseError if they are another number.
  Positions of(int64_t columns) const;
  /// The ranges of a tensor with so many columns, none of them empty.
  std::vector<Range> ranges(int64_t columns) const { return of(columns).ranges_; }

  /// Is the number of positions left to the tensor?
  bool is_open() const { return whole_ < 0; }
  /// The first position; of none, 0.
  int64_t first() const { return ranges_.empty() ? begin_ : ranges_.front().begin; }
  /// How many there are, and how many the sequence has. Not of open ones.
  int64_t count() const;
  int64_t whole() const { return whole_; }
  const std::vector<Range>& ranges() const { return ranges_; }

  /// Those of some of the columns. Not of open ones.
  Positions narrow(Range columns) const;
  /// Each position, in the order of the columns. Not of open ones.
  std::vector<int64_t> each() const;

  bool operator==(const Positions&) const = default;

 private:
  int64_t begin_ = 0;          // of open ones
  std::vector<Range> ranges_;  // of others
  int64_t whole_ = -1;         // of open ones -1
};

/// The positions of rank `rank` of `size` along the context axis: of 2 x size pieces of a sequence,
/// as even as possible, piece `rank` and piece 2 x size - 1 - rank. Of one rank: all of them.
Positions head_and_tail(int64_t whole, int size, int rank);

/// "0-3, 12-15 of 16", for messages.
std::string to_string(const Positions& positions);

}  // namespace trireme
