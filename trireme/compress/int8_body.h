// int8: one scale for 256 elements, and a byte for each. Included by kernels_body.h.
//
//   scale = max |x| / 127            but at least 2^-126, so that 1 / scale is finite
//   code  = floor(x / scale + u)     u = (byte + 1/2) / 256, with a random byte for each element
//   said  = code * scale             the byte that is sent is code + 128, from 1 to 255
//
// The fraction of x / scale is rounded up with that probability, to the nearest 1/256: whole
// numbers stay, and the expectation of what is said is at most scale / 512 away from x.
//
// Where an element is NaN or infinite the scale is NaN: all 256 are NaN when they are decoded.
#pragma once

#include "trireme/compress/kernels_body.h"
#include "trireme/compress/philox_body.h"

namespace trireme::compress {
namespace {

constexpr int32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;
constexpr uint32_t kQuietNan = 0x7FC00000;

/// The bits of the largest magnitude. Magnitudes are ordered as their bits are, and NaN is largest.
/// Adds the block to the residual on the way.
template <bool kFeedback>
inline int32_t largest_magnitude(const float* block, float* residual) {
  constexpr int kAtOnce = 4;
  Ints most[kAtOnce] = {};
  for (int i = 0; i < kInt8Block; i += kAtOnce * kLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < kAtOnce; ++v) {
      const int at = i + v * kLanes;
      auto value = load<Floats>(bytes_of(block + at));
      if constexpr (kFeedback) {
        value += load<Floats>(bytes_of(residual + at));
        store(bytes_of(residual + at), value);
      }
      const Ints magnitude = bits_as<Ints>(value) & kMagnitude;
      most[v] = magnitude > most[v] ? magnitude : most[v];
    }
  }
  const Ints left = most[0] > most[1] ? most[0] : most[1];
  const Ints right = most[2] > most[3] ? most[2] : most[3];
  const Ints all = left > right ? left : right;
  int32_t largest = 0;
  for (int lane = 0; lane < kLanes; ++lane) largest = all[lane] > largest ? all[lane] : largest;
  return largest;
}

inline float scale_of(int32_t largest) {
  const float scale = bits_as<float>(largest) / 127;
  return scale > 0x1p-126f ? scale : 0x1p-126f;
}

/// Codes of four vectors. x / scale + 128 + u is from 1 to 255.998; truncation is the floor.
template <bool kFeedback>
inline void encode_codes(const float* values, float* residual, const char* random, float scale,
                         char* codes) {
  const float inverse = 1 / scale;
  for (int i = 0; i < kInt8Block; i += 4 * kLanes) {
    Ints code[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const int at = i + v * kLanes;
      const auto value = load<Floats>(bytes_of(values + at));
      // As bits, 128 + u: the last place of a float from 128 to 256 is 2^-16.
      const Ints offset = load_bytes(random + at) << 8 | 0x43000080;
      code[v] = convert<int32_t, float, kLanes>(value * inverse + bits_as<Floats>(offset));
      if constexpr (kFeedback) {
        const Floats said = (convert<float, int32_t, kLanes>(code[v]) - 128) * scale;
        store(bytes_of(residual + at), remainder<Floats>(value, said));
      }
    }
    store(codes + i, pack_bytes(code[0], code[1], code[2], code[3]));
  }
}

/// 256 elements; `residual` is null without feedback.
template <bool kFeedback>
inline void encode_int8_block(const float* block, float* residual, const char* random,
                              char* scale_to, char* codes) {
  const int32_t largest = largest_magnitude<kFeedback>(block, residual);
  if (largest >= kInfinity) {
    store(scale_to, kQuietNan);
    __builtin_memset(codes, 128, kInt8Block);
    if constexpr (kFeedback) __builtin_memset(residual, 0, kInt8Block * sizeof(float));
    return;
  }
  const float scale = scale_of(largest);
  store(scale_to, scale);
  encode_codes<kFeedback>(kFeedback ? residual : block, residual, random, scale, codes);
}

/// The last elements, filled up with zeros to 256.
template <bool kFeedback>
inline void encode_int8_rest(const Source& rest, const char* random, char* scale_to, char* codes) {
  float block[kInt8Block] = {}, residual[kInt8Block] = {};
  char all_codes[kInt8Block];
  const auto bytes = static_cast<std::size_t>(rest.count) * sizeof(float);
  __builtin_memcpy(block, rest.block, bytes);
  if constexpr (kFeedback) __builtin_memcpy(residual, rest.residual, bytes);
  encode_int8_block<kFeedback>(block, residual, random, scale_to, all_codes);
  __builtin_memcpy(codes, all_codes, static_cast<std::size_t>(rest.count));
  if constexpr (kFeedback) __builtin_memcpy(rest.residual, residual, bytes);
}

template <bool kFeedback>
inline void encode_all_int8(const Source& source, const RandomPlace& place, char* scales,
                            char* codes) {
  const PhiloxKeys keys(place.key);
  alignas(64) char random[kRandomBytes];
  for (int64_t i = 0; i < source.count; i += kInt8Block, scales += sizeof(float)) {
    random_bytes(keys, place.step, place.element + static_cast<uint64_t>(i), random);
    float* residual = kFeedback ? source.residual + i : nullptr;
    if (source.count - i >= kInt8Block)
      encode_int8_block<kFeedback>(source.block + i, residual, random, scales, codes + i);
    else
      encode_int8_rest<kFeedback>({source.block + i, residual, source.count - i}, random, scales,
                                  codes + i);
  }
}

void encode_int8(const Source& source, const RandomPlace& place, char* scales, char* codes) {
  if (source.residual != nullptr) return encode_all_int8<true>(source, place, scales, codes);
  encode_all_int8<false>(source, place, scales, codes);
}

void decode_int8(const char* scales, const char* codes, float* block, int64_t count) {
  for (int64_t begin = 0; begin < count; begin += kInt8Block, scales += sizeof(float)) {
    const float scale = load<float>(scales);
    const int64_t end = begin + kInt8Block < count ? begin + kInt8Block : count;
    int64_t i = begin;
#pragma GCC unroll 4
    for (; i + kLanes <= end; i += kLanes)
      store(bytes_of(block + i),
            (convert<float, int32_t, kLanes>(load_bytes(codes + i)) - 128) * scale);
    for (; i < end; ++i)
      block[i] = (static_cast<float>(static_cast<unsigned char>(codes[i])) - 128) * scale;
  }
}

}  // namespace
}  // namespace trireme::compress
