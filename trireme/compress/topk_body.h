// topk: finds the elements of largest magnitude. Included by kernels_body.h; topk.cpp does the
// rest.
//
// The bits of a magnitude are ordered as magnitudes are. Their upper 12 bits name a bin:
//
//   0 eeeeeeee mmmm mmmmmmmmmmmmmmmmmmm        bins:   small |..|.|||||...|.| large
//     '---- bin ---'                                               ^ the k-th largest is in this
//     one
//
// One pass counts the bins, a second one finds the elements of that bin and above: all that are
// sent are among them, and few others.
#pragma once

#include "trireme/compress/kernels_body.h"

namespace trireme::compress {
namespace {

/// Neighbours count into different tables, so that one increment does not wait for the last.
constexpr int kTables = 4;
constexpr int64_t kCountedTogether = 1024;  // elements that stay in the cache between two loops

inline void count_some(const float* values, int64_t count, uint32_t (*tables)[kMagnitudeBins]) {
  const auto bin = [&](int64_t i) {
    return (load<uint32_t>(bytes_of(values + i)) & 0x7FFFFFFF) >> kMagnitudeShift;
  };
  int64_t i = 0;
  for (; i + kTables <= count; i += kTables) {
#pragma GCC unroll 4
    for (int table = 0; table < kTables; ++table) ++tables[table][bin(i + table)];
  }
  for (; i < count; ++i) ++tables[0][bin(i)];
}

inline void add_block(const float* block, float* residual, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    store(bytes_of(residual + i),
          load<Floats>(bytes_of(residual + i)) + load<Floats>(bytes_of(block + i)));
  for (; i < count; ++i) residual[i] += block[i];
}

void count_magnitudes(const Source& source, uint32_t* bins) {
  uint32_t tables[kTables][kMagnitudeBins] = {};
  for (int64_t begin = 0; begin < source.count; begin += kCountedTogether) {
    const int64_t left = source.count - begin;
    const int64_t count = left < kCountedTogether ? left : kCountedTogether;
    const float* values = source.block + begin;
    if (source.residual != nullptr) {
      add_block(values, source.residual + begin, count);
      values = source.residual + begin;
    }
    count_some(values, count, tables);
  }
  for (int bin = 0; bin < kMagnitudeBins; ++bin)
    for (int table = 0; table < kTables; ++table) bins[bin] += tables[table][bin];
}

int64_t find_magnitudes(const float* values, int64_t count, uint32_t least, uint32_t* indices) {
  constexpr int kTogether = 32;
  const Ints bound = Ints{} + static_cast<int32_t>(least);
  int64_t i = 0, found = 0;
  for (; i + kTogether <= count; i += kTogether) {
    uint32_t large = 0;
#pragma GCC unroll 8
    for (int v = 0; v < kTogether / kLanes; ++v) {
      const Ints magnitude = load<Ints>(bytes_of(values + i + v * kLanes)) & 0x7FFFFFFF;
      large |= lane_bits(magnitude >= bound) << (v * kLanes);
    }
    for (; large != 0; large &= large - 1)
      indices[found++] = static_cast<uint32_t>(i + __builtin_ctz(large));
  }
  for (; i < count; ++i)
    if ((load<uint32_t>(bytes_of(values + i)) & 0x7FFFFFFF) >= least)
      indices[found++] = static_cast<uint32_t>(i);
  return found;
}

}  // namespace
}  // namespace trireme::compress
