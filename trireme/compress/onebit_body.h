// onebit (Seide, Fu, Droppo, Li, Yu 2014): a bit for each element, and two means for 4096 of them.
// Included by kernels_body.h.
//
//   bit    1 where x is not negative (0 and NaN are not)
//   means  of the elements with bit 1, and of those with bit 0: what each is decoded to
//
// A NaN or an infinity makes the mean of its side NaN or infinite, and so every element there.
//
// Element i of a block is added to sum i % 32, and the 32 sums are added in pairs, so that every
// CPU adds in the same order:
//
//   s0 s1 ... s15 | s16 ... s31   ->   s0+s16 ... s7+s23 | ... s15+s31   ->  ...  ->   one sum
#pragma once

#include "trireme/compress/kernels_body.h"

namespace trireme::compress {
namespace {

constexpr int kSums = 32;
constexpr int kSumVectors = kSums / kLanes;

inline float add_in_pairs(const Floats* vectors) {
  float sums[kSums];
  for (int v = 0; v < kSumVectors; ++v) store(bytes_of(sums + v * kLanes), vectors[v]);
  for (int half = kSums / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

struct Means {
  float positive, negative;
};

/// Writes the bits of 4096 elements, of which `count` are there and the others 0. Adds the block to
/// the residual on the way.
template <bool kFeedback>
inline Means encode_signs(const float* block, float* residual, int64_t count, char* bits) {
  Floats positive[kSumVectors] = {}, negative[kSumVectors] = {};
  int num_negative = 0;
  for (int i = 0; i < kOneBitBlock; i += kSums) {
    uint32_t signs = 0;
#pragma GCC unroll 8
    for (int v = 0; v < kSumVectors; ++v) {
      const int at = i + v * kLanes;
      auto value = load<Floats>(bytes_of(block + at));
      if constexpr (kFeedback) {
        value += load<Floats>(bytes_of(residual + at));
        store(bytes_of(residual + at), value);
      }
      const Ints below = value < 0;
      positive[v] += bits_as<Floats>(bits_as<Ints>(value) & ~below);
      negative[v] += bits_as<Floats>(bits_as<Ints>(value) & below);
      signs |= lane_bits(below) << (v * kLanes);
    }
    store(bits + i / 8, ~signs);
    num_negative += __builtin_popcount(signs);
  }
  const auto num_positive = static_cast<int>(count) - num_negative;
  const float sum = add_in_pairs(positive), negative_sum = add_in_pairs(negative);
  return {num_positive > 0 ? sum / static_cast<float>(num_positive) : 0,
          num_negative > 0 ? negative_sum / static_cast<float>(num_negative) : 0};
}

template <bool kFeedback>
inline void encode_onebit_block(const float* block, float* residual, int64_t count, char* means_to,
                                char* bits) {
  const Means means = encode_signs<kFeedback>(block, residual, count, bits);
  store(means_to, means.positive);
  store(means_to + sizeof(float), means.negative);
  if constexpr (kFeedback) {
    const Floats positive = Floats{} + means.positive, negative = Floats{} + means.negative;
    for (int i = 0; i < kOneBitBlock; i += kLanes) {
      const auto value = load<Floats>(bytes_of(residual + i));
      store(bytes_of(residual + i), remainder<Floats>(value, value < 0 ? negative : positive));
    }
  }
}

/// The last elements, filled up with zeros to 4096. Bits of elements that are not there are 0.
template <bool kFeedback>
inline void encode_onebit_rest(const Source& rest, char* means, char* bits) {
  float block[kOneBitBlock] = {}, residual[kOneBitBlock] = {};
  char all_bits[kOneBitBlock / 8];
  const auto bytes = static_cast<std::size_t>(rest.count) * sizeof(float);
  __builtin_memcpy(block, rest.block, bytes);
  if constexpr (kFeedback) __builtin_memcpy(residual, rest.residual, bytes);
  encode_onebit_block<kFeedback>(block, residual, rest.count, means, all_bits);
  const int64_t num_bytes = (rest.count + 7) / 8;
  __builtin_memcpy(bits, all_bits, static_cast<std::size_t>(num_bytes));
  if (rest.count % 8 != 0)
    bits[num_bytes - 1] = static_cast<char>(bits[num_bytes - 1] & ((1 << rest.count % 8) - 1));
  if constexpr (kFeedback) __builtin_memcpy(rest.residual, residual, bytes);
}

template <bool kFeedback>
inline void encode_all_onebit(const Source& source, char* means, char* bits) {
  for (int64_t i = 0; i < source.count; i += kOneBitBlock, means += sizeof(Means)) {
    float* residual = kFeedback ? source.residual + i : nullptr;
    if (source.count - i >= kOneBitBlock)
      encode_onebit_block<kFeedback>(source.block + i, residual, kOneBitBlock, means, bits + i / 8);
    else
      encode_onebit_rest<kFeedback>({source.block + i, residual, source.count - i}, means,
                                    bits + i / 8);
  }
}

void encode_onebit(const Source& source, char* means, char* bits) {
  if (source.residual != nullptr) return encode_all_onebit<true>(source, means, bits);
  encode_all_onebit<false>(source, means, bits);
}

/// 1, 2, 4 ...: the bit of each lane.
inline Ints bit_of_lane() {
  Ints bits{};
  for (int lane = 0; lane < kLanes; ++lane) bits[lane] = 1 << lane;
  return bits;
}

void decode_onebit(const char* means, const char* bits, float* block, int64_t count) {
  const Ints lane_bit = bit_of_lane();
  for (int64_t begin = 0; begin < count; begin += kOneBitBlock, means += sizeof(Means)) {
    const float positive = load<float>(means), negative = load<float>(means + sizeof(float));
    const Floats positives = Floats{} + positive, negatives = Floats{} + negative;
    const int64_t end = begin + kOneBitBlock < count ? begin + kOneBitBlock : count;
    int64_t i = begin;
    for (; i + 32 <= end; i += 32) {
      const auto word = load<uint32_t>(bits + i / 8);
#pragma GCC unroll 8
      for (int v = 0; v < kSumVectors; ++v) {
        const Ints here = (Ints{} + static_cast<int32_t>(word >> (v * kLanes))) & lane_bit;
        store(bytes_of(block + i + v * kLanes), here != 0 ? positives : negatives);
      }
    }
    for (; i < end; ++i) block[i] = bits[i / 8] >> i % 8 & 1 ? positive : negative;
  }
}

}  // namespace
}  // namespace trireme::compress
