// CPUs with AVX2 and F16C.
#pragma once

#include <immintrin.h>

namespace trireme::comm {
constexpr int kVectorBytes = 32;
}  // namespace trireme::comm

#include "trireme/comm/vectors.h"

namespace trireme::comm {
namespace {

constexpr int kNearestEven = 0;

template <int N>
Vec<float, N> half_to_float(Vec<uint16_t, N> v) {
  if constexpr (N == 1)
    return _cvtsh_ss(v);
  else
    return bits_as<Vec<float, N>>(_mm256_cvtph_ps(bits_as<__m128i>(v)));
}

template <int N>
Vec<uint16_t, N> float_to_half(Vec<float, N> v) {
  if constexpr (N == 1)
    return _cvtss_sh(v, kNearestEven);
  else
    return bits_as<Vec<uint16_t, N>>(_mm256_cvtps_ph(bits_as<__m256>(v), kNearestEven));
}

}  // namespace
}  // namespace trireme::comm
