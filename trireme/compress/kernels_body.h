// The kernels of the compressors, written once and compiled for several kinds of CPU, as those of
// comm are (trireme/comm/vectors.h says what must not be called here). Each of kernels_base.cpp,
// kernels_avx2.cpp, kernels_avx512.cpp (x86-64) and kernels_plain.cpp (all others) includes its
// vectors_*.h and this file, and then defines what is only declared here.
#pragma once

#include "trireme/comm/vectors.h"
#include "trireme/compress/kernels.h"

namespace trireme::compress {
namespace {

using comm::bits_as;
using comm::convert;
using comm::kVectorBytes;
using comm::load;
using comm::Register;
using comm::store;
using comm::Vec;

constexpr int kLanes = kVectorBytes / 4;
using Floats = Vec<float, kLanes>;
using Ints = Vec<int32_t, kLanes>;
using Words = Vec<uint64_t, kVectorBytes / 8>;

/// Bit i of the result is set where lane i is not 0; lanes are 0 or -1.
uint32_t lane_bits(Ints lanes);

/// kLanes bytes, each as a number from 0 to 255.
Ints load_bytes(const char* from);

/// The lowest bytes of four vectors, one after the other; lanes are from 0 to 255.
Register pack_bytes(Ints a, Ints b, Ints c, Ints d);

/// The products of the lower 32 bits of each lane.
Words multiply_low(Words a, Words b);

inline const char* bytes_of(const float* x) {
  return reinterpret_cast<const char*>(x);
}
inline char* bytes_of(float* x) {
  return reinterpret_cast<char*>(x);
}

/// What remains of `value` when `said` has been sent: 0 if that is not finite.
template <class V>
inline V remainder(V value, V said) {
  const V rest = value - said;
  return rest - rest == 0 ? rest : V{};
}

}  // namespace
}  // namespace trireme::compress

#include "trireme/compress/halves_body.h"
#include "trireme/compress/int8_body.h"
#include "trireme/compress/onebit_body.h"
#include "trireme/compress/topk_body.h"

namespace trireme::compress {
namespace {

constexpr Kernels kernels_called(const char* name) {
  return {name,
          encode_halves<comm::Half>,
          decode_halves<comm::Half>,
          encode_halves<comm::BFloat>,
          decode_halves<comm::BFloat>,
          encode_int8,
          decode_int8,
          encode_onebit,
          decode_onebit,
          count_magnitudes,
          find_magnitudes};
}

}  // namespace
}  // namespace trireme::compress
