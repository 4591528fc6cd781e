#include "trireme/exchange/transpose.h"

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme::exchange {

namespace {

/// Tile by tile: a tile is copied row by row into a small buffer and written from there. To read it
/// in place would touch each line many times, and lines that are a power of two apart push each
/// other out of the cache.
template <class Elem>
void transpose_as(const void* from, int64_t rows, int64_t columns, void* to) {
  constexpr int64_t kHeight = 64 / sizeof(Elem), kWidth = 4 * kHeight;  // one cache line by four
  const auto* source = static_cast<const Elem*>(from);
  auto* target = static_cast<Elem*>(to);
  Elem tile[kHeight][kWidth];
  for (int64_t row = 0; row < rows; row += kHeight)
    for (int64_t column = 0; column < columns; column += kWidth) {
      const int64_t height = std::min(kHeight, rows - row);
      const int64_t width = std::min(kWidth, columns - column);
      for (int64_t r = 0; r < height; ++r)
        std::copy_n(source + (row + r) * columns + column, width, tile[r]);
      for (int64_t c = 0; c < width; ++c)
        for (int64_t r = 0; r < height; ++r) target[(column + c) * rows + row + r] = tile[r][c];
    }
}

}  // namespace

void transpose(const void* from, int64_t rows, int64_t columns, int64_t elem_bytes, void* to) {
  switch (elem_bytes) {
    case 2: return transpose_as<uint16_t>(from, rows, columns, to);
    case 4: return transpose_as<uint32_t>(from, rows, columns, to);
    case 8: return transpose_as<uint64_t>(from, rows, columns, to);
    default: core::check(false, "elements of {} bytes cannot be transposed", elem_bytes);
  }
}

}  // namespace trireme::exchange
