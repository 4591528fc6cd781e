// CPUs with vectors of 16 bytes that have no instructions for halves: converts them by hand.
#pragma once

namespace trireme::comm {
constexpr int kVectorBytes = 16;
}  // namespace trireme::comm

#include "trireme/comm/vectors.h"

namespace trireme::comm {
namespace {

//   half   s eeeee mmmmmmmmmm                      exponent bias 15
//   float  s eeeeeeee mmmmmmmmmm.............      exponent bias 127; 13 more bits of mantissa
constexpr int kMoreMantissa = 13;
constexpr int32_t kBias = (127 - 15) << 23;
constexpr int32_t kFloatInf = 0x7F800000, kFloatQuiet = 0x00400000;
constexpr int32_t kHalfInf = 0x7C00, kHalfQuiet = 0x0200;

template <int N>
Vec<float, N> half_to_float(Vec<uint16_t, N> v) {
  using Int = Vec<int32_t, N>;
  const Int bits = convert<int32_t, uint16_t, N>(v);
  const Int sign = (bits & 0x8000) << 16;
  const Int magnitude = bits & 0x7FFF;
  const Int moved = magnitude << kMoreMantissa;
  const Int normal = moved + kBias;
  // A subnormal half is a whole number of 2^-24.
  const Int subnormal = bits_as<Int>(convert<float, int32_t, N>(magnitude) * 0x1p-24f);
  const Int infinite = moved | kFloatInf;
  const Int nan = infinite | kFloatQuiet;
  Int result = magnitude < 0x0400 ? subnormal : normal;
  result = magnitude >= kHalfInf ? infinite : result;
  result = magnitude > kHalfInf ? nan : result;
  return bits_as<Vec<float, N>>(result | sign);
}

template <int N>
Vec<uint16_t, N> float_to_half(Vec<float, N> v) {
  using Int = Vec<int32_t, N>;
  constexpr int32_t kOverflow = 0x477FF000;        // 65520: halfway from the largest half to 2^16
  constexpr int32_t kSmallestNormal = 0x38800000;  // 2^-14
  const Int bits = bits_as<Int>(v);
  const Int magnitude = bits & 0x7FFFFFFF;
  const Int sign = (bits >> 16) & 0x8000;
  const Int moved = magnitude - kBias;
  const Int normal = (moved + 0x0FFF + ((moved >> kMoreMantissa) & 1)) >> kMoreMantissa;
  // The last place of 0.5f is 2^-24, that of a subnormal half: the addition rounds for us.
  const Int subnormal = bits_as<Int>(bits_as<Vec<float, N>>(magnitude) + 0.5f) - 0x3F000000;
  const Int nan = ((magnitude >> kMoreMantissa) & 0x03FF) | kHalfInf | kHalfQuiet;
  const Int infinite = (magnitude & 0) + kHalfInf;
  Int result = magnitude < kSmallestNormal ? subnormal : normal;
  result = magnitude >= kOverflow ? infinite : result;
  result = magnitude > kFloatInf ? nan : result;
  return convert<uint16_t, int32_t, N>(result | sign);
}

}  // namespace
}  // namespace trireme::comm
