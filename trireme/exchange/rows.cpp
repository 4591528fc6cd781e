#include "trireme/exchange/rows.h"

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/format/cast.h"
#include "trireme/format/dtype.h"

namespace trireme::exchange {

namespace {

/// Matrices one above the other: a matrix of all of their rows.
void for_each_block_of_stack(const Piece& piece,
                             const std::function<void(int64_t, int64_t, int64_t, int64_t)>& visit) {
  const int64_t numel = piece.shape[1] * piece.shape[2], end = piece.begin + piece.count;
  for (int64_t at = piece.begin; at < end;) {
    const int64_t nth = at / numel, until = std::min(end, (nth + 1) * numel);
    const int64_t above = (piece.offset[0] + nth) * piece.whole[1];
    for_each_block({piece.name,
                    {piece.whole[1], piece.whole[2]},
                    {piece.offset[1], piece.offset[2]},
                    {piece.shape[1], piece.shape[2]},
                    at - nth * numel,
                    until - at},
                   [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
                     visit(above + row, rows, column, columns);
                   });
    at = until;
  }
}

}  // namespace

void for_each_block(const Piece& piece,
                    const std::function<void(int64_t, int64_t, int64_t, int64_t)>& visit) {
  const std::size_t dims = piece.whole.size();
  core::check(dims >= 1 && dims <= 3, "'{}' has {} dims; weights have 1 to 3", piece.name, dims);
  if (dims == 3) return for_each_block_of_stack(piece, visit);
  const int64_t width = dims == 1 ? 1 : piece.shape[1];
  const int64_t top = piece.offset[0], left = dims == 1 ? 0 : piece.offset[1];
  int64_t at = piece.begin;
  const int64_t end = piece.begin + piece.count;
  while (at < end) {
    const int64_t row = at / width, column = at % width;
    const int64_t rows = column == 0 ? std::max<int64_t>(1, (end - at) / width) : 1;
    const int64_t columns = rows > 1 ? width : std::min(width - column, end - at);
    visit(top + row, rows, left + column, columns);
    at += rows * columns;
  }
}

int64_t halves_row(int64_t row, int64_t head_rows) {
  const int64_t head = row / head_rows, place = row % head_rows;
  return head * head_rows + place % 2 * (head_rows / 2) + place / 2;
}

MeanOfRows::MeanOfRows(std::string dtype, int64_t columns)
    : dtype_(std::move(dtype)), sums_(static_cast<std::size_t>(columns)) {}

int64_t MeanOfRows::row_bytes() const {
  return static_cast<int64_t>(sums_.size()) * format::dtype_bytes(dtype_);
}

int64_t MeanOfRows::rows_at_once() const {
  return std::max<int64_t>(1, core::kMiB / row_bytes());
}

void MeanOfRows::add(const void* rows, int64_t count) {
  const auto columns = static_cast<int64_t>(sums_.size());
  std::vector<double> values(static_cast<std::size_t>(count * columns));
  format::cast(dtype_, rows, "F64", values.data(), count * columns);
  for (int64_t i = 0; i < count * columns; ++i)
    sums_[static_cast<std::size_t>(i % columns)] += values[static_cast<std::size_t>(i)];
  count_ += count;
}

std::vector<char> MeanOfRows::mean() const {
  std::vector<double> means = sums_;
  for (double& one : means) one /= static_cast<double>(std::max<int64_t>(1, count_));
  std::vector<char> row(static_cast<std::size_t>(row_bytes()));
  format::cast("F64", means.data(), dtype_, row.data(), static_cast<int64_t>(means.size()));
  return row;
}

}  // namespace trireme::exchange
