#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/layout/piece.h"

namespace trireme::exchange {

/// Cuts a piece of a matrix (or of a vector, which is a matrix of one column, or of a stack of
/// matrices, whose rows are counted one matrix after the other) into blocks of rows and columns;
/// calls visit(row, rows, column, columns) for each, in the order of the elements.
///
///        . . . . . .      a box of 3 rows and 4 columns, of which
///        . . . a a .      elements 2 to 9 are wanted:
///        . b b b b .      three blocks a, b, c
///        . c c . . .
void for_each_block(const Piece& piece,
                    const std::function<void(int64_t, int64_t, int64_t, int64_t)>& visit);

/// The row of a head of "halves" that is row `row` of "neighbours", the heads one after the other:
///
///     neighbours   0 1 2 3 4 5        pairs (0 1) (2 3) (4 5)
///     halves       0 3 1 4 2 5        pairs (0 3) (1 4) (2 5)
int64_t halves_row(int64_t row, int64_t head_rows);

/// The mean of the rows of a matrix, for rows that pad a vocabulary: a token with this embedding
/// has the mean of all logits, so that it is never the likeliest.
class MeanOfRows {
 public:
  MeanOfRows(std::string dtype, int64_t columns);

  int64_t row_bytes() const;
  /// How many rows are about a MiB.
  int64_t rows_at_once() const;
  void add(const void* rows, int64_t count);
  /// Rounded to the dtype.
  std::vector<char> mean() const;

 private:
  std::string dtype_;
  std::vector<double> sums_;
  int64_t count_ = 0;
};

}  // namespace trireme::exchange
