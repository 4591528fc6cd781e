// CPUs with AVX-512 F, BW, VL and DQ.
#pragma once

#include <immintrin.h>

namespace trireme::comm {
constexpr int kVectorBytes = 64;
}  // namespace trireme::comm

#include "trireme/comm/vectors.h"

namespace trireme::comm {
namespace {

constexpr int kNearestEven = 0;
constexpr __mmask16 kAllLanes = 0xFFFF;  // gcc 12 warns about its own unmasked conversions

template <int N>
Vec<float, N> half_to_float(Vec<uint16_t, N> v) {
  if constexpr (N == 1)
    return _cvtsh_ss(v);
  else
    return bits_as<Vec<float, N>>(_mm512_maskz_cvtph_ps(kAllLanes, bits_as<__m256i>(v)));
}

template <int N>
Vec<uint16_t, N> float_to_half(Vec<float, N> v) {
  if constexpr (N == 1)
    return _cvtss_sh(v, kNearestEven);
  else
    return bits_as<Vec<uint16_t, N>>(
        _mm512_maskz_cvtps_ph(kAllLanes, bits_as<__m512>(v), kNearestEven));
}

}  // namespace
}  // namespace trireme::comm
