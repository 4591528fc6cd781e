#pragma once

#include <cstdint>

namespace trireme::exchange {

/// Writes the transpose of a matrix [rows, columns] of elements of 2, 4 or 8 bytes.
void transpose(const void* from, int64_t rows, int64_t columns, int64_t elem_bytes, void* to);

}  // namespace trireme::exchange
