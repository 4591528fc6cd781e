// topk: counts and finds magnitudes. Included by kernels_body.h; topk.cpp tells what they are for.
//
// The bits of a magnitude are ordered as magnitudes are. Their upper 12 bits name a bin:
//
//   0 eeeeeeee mmmm mmmmmmmmmmmmmmmmmmm
//     '---- bin ---'
#pragma once

#include "trireme/compress/kernels_body.h"

namespace trireme::compress {
namespace {

/// Neighbours count into different tables, so that one increment does not wait for the last.
constexpr int kTables = 4;

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

void count_magnitudes(const float* values, int64_t count, uint32_t* bins) {
  uint32_t tables[kTables][kMagnitudeBins] = {};
  count_some(values, count, tables);
  for (int bin = 0; bin < kMagnitudeBins; ++bin)
    for (int table = 0; table < kTables; ++table) bins[bin] += tables[table][bin];
}

template <bool kFeedback>
inline int64_t find_all_magnitudes(const Source& source, uint32_t least, uint32_t* indices,
                                   float* values) {
  const float* from = kFeedback ? source.residual : source.block;
  constexpr int kTogether = 32;
  const Ints bound = Ints{} + static_cast<int32_t>(least);
  int64_t i = 0, found = 0;
  for (; i + kTogether <= source.count; i += kTogether) {
    uint32_t large = 0;
#pragma GCC unroll 8
    for (int v = 0; v < kTogether / kLanes; ++v) {
      const int64_t at = i + v * kLanes;
      auto value = load<Floats>(bytes_of(source.block + at));
      if constexpr (kFeedback) {
        value += load<Floats>(bytes_of(source.residual + at));
        store(bytes_of(source.residual + at), value);
      }
      large |= lane_bits((bits_as<Ints>(value) & 0x7FFFFFFF) >= bound) << (v * kLanes);
    }
    for (; large != 0; large &= large - 1, ++found) {
      const int64_t at = i + __builtin_ctz(large);
      indices[found] = static_cast<uint32_t>(at);
      values[found] = from[at];  // now it is in the cache
    }
  }
  for (; i < source.count; ++i) {
    float value = source.block[i];
    if constexpr (kFeedback) value = source.residual[i] += value;
    if ((bits_as<uint32_t>(value) & 0x7FFFFFFF) < least) continue;
    indices[found] = static_cast<uint32_t>(i);
    values[found++] = value;
  }
  return found;
}

int64_t find_magnitudes(const Source& source, uint32_t least, uint32_t* indices, float* values) {
  if (source.residual != nullptr) return find_all_magnitudes<true>(source, least, indices, values);
  return find_all_magnitudes<false>(source, least, indices, values);
}

}  // namespace
}  // namespace trireme::compress
