// fp16 and bf16: every element is rounded to 16 bits, to nearest even. Included by kernels_body.h.
#pragma once

#include "trireme/compress/kernels_body.h"

namespace trireme::compress {
namespace {

/// N elements from element `i` on.
template <class Format, int N, bool kFeedback>
inline void encode_some_halves(const Source& source, int64_t i, char* halves) {
  using V = Vec<float, N>;
  V value = load<V>(bytes_of(source.block + i));
  if constexpr (kFeedback) value += load<V>(bytes_of(source.residual + i));
  const Vec<uint16_t, N> half = Format::template narrow<N>(value);
  store(halves + 2 * i, half);
  if constexpr (kFeedback)
    store(bytes_of(source.residual + i), remainder<V>(value, Format::template widen<N>(half)));
}

template <class Format, bool kFeedback>
inline void encode_all_halves(const Source& source, char* halves) {
  constexpr int kAtOnce = 4;
  int64_t i = 0;
  for (; i + kAtOnce * kLanes <= source.count; i += kAtOnce * kLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < kAtOnce; ++v)
      encode_some_halves<Format, kLanes, kFeedback>(source, i + v * kLanes, halves);
  }
  for (; i < source.count; ++i) encode_some_halves<Format, 1, kFeedback>(source, i, halves);
}

template <class Format>
void encode_halves(const Source& source, char* halves) {
  if (source.residual != nullptr) return encode_all_halves<Format, true>(source, halves);
  encode_all_halves<Format, false>(source, halves);
}

template <class Format>
void decode_halves(const char* halves, float* block, int64_t count) {
  using Items = Vec<uint16_t, kLanes>;
  constexpr int kAtOnce = 4;
  int64_t i = 0;
  for (; i + kAtOnce * kLanes <= count; i += kAtOnce * kLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < kAtOnce; ++v)
      store(bytes_of(block + i + v * kLanes),
            Format::template widen<kLanes>(load<Items>(halves + 2 * (i + v * kLanes))));
  }
  for (; i < count; ++i) block[i] = Format::template widen<1>(load<uint16_t>(halves + 2 * i));
}

}  // namespace
}  // namespace trireme::compress
