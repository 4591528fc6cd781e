// 256 random bytes at once. Included by int8_body.h.
//
// One call of core::philox gives 16 bytes, for 16 elements. Here several counters go through the
// rounds side by side, one to a lane of 64 bits. A product then has both of its halves in its lane:
// the lower is what the next round multiplies, and what lies above it is never read.
//
//   c0 c2   lower 32 bits: the word          M0 c0, M1 c2   upper: hi, lower: lo
//   c1 c3   lower 32 bits: the word
#pragma once

#include "trireme/compress/kernels_body.h"

namespace trireme::compress {
namespace {

constexpr int kRandomBytes = 256;
constexpr int kWords = kVectorBytes / 8;
constexpr uint64_t kLower = 0xFFFFFFFF;

/// The keys of the ten rounds.
struct PhiloxKeys {
  static constexpr int kRounds = 10;
  uint64_t low[kRounds], high[kRounds];

  explicit PhiloxKeys(uint64_t key) {
    auto a = static_cast<uint32_t>(key), b = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < kRounds; ++round, a += 0x9E3779B9, b += 0xBB67AE85) {
      low[round] = a;
      high[round] = b;
    }
  }
};

/// The counter of each lane: lanes 0, 2, 4 ... have the first counters and lanes 1, 3, 5 ... those
/// after them, so that `even_pairs` and `odd_pairs` give the bytes in order.
inline Words lane_counters() {
  Words counters{};
  for (int lane = 0; lane < kWords; ++lane)
    counters[lane] = static_cast<uint64_t>(16 * (lane / 2 + lane % 2 * (kWords / 2)));
  return counters;
}

/// a0 b0 a2 b2 ... and a1 b1 a3 b3 ...
inline Words even_pairs(Words a, Words b) {
  Words order{};
  for (int lane = 0; lane < kWords; ++lane)
    order[lane] = static_cast<uint64_t>(lane % 2 == 0 ? lane : kWords + lane - 1);
  return __builtin_shuffle(a, b, order);
}
inline Words odd_pairs(Words a, Words b) {
  Words order{};
  for (int lane = 0; lane < kWords; ++lane)
    order[lane] = static_cast<uint64_t>(lane % 2 == 0 ? lane + 1 : kWords + lane);
  return __builtin_shuffle(a, b, order);
}

/// Byte b is byte b % 16 of philox(key, step, element + b - b % 16).
inline void random_bytes(const PhiloxKeys& keys, uint64_t step, uint64_t element, char* out) {
  constexpr int kVectors = 2;
  constexpr int kBytes = kVectors * kVectorBytes * 2;  // of one turn of the loop
  const Words multiply0 = Words{} + 0xD2511F53, multiply1 = Words{} + 0xCD9E8D57;
#pragma GCC unroll 1
  for (int at = 0; at < kRandomBytes; at += kBytes) {
    Words c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      c0[v] = lane_counters() + (element + static_cast<uint64_t>(at + v * 2 * kVectorBytes));
      c1[v] = c0[v] >> 32;
      c2[v] = Words{} + step;
      c3[v] = Words{} + (step >> 32);
    }
#pragma GCC unroll 10
    for (int round = 0; round < PhiloxKeys::kRounds; ++round) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const Words product0 = multiply_low(c0[v], multiply0);
        const Words product1 = multiply_low(c2[v], multiply1);
        c0[v] = (product1 >> 32) ^ c1[v] ^ keys.low[round];
        c1[v] = product1;
        c2[v] = (product0 >> 32) ^ c3[v] ^ keys.high[round];
        c3[v] = product0;
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const Words first = (c0[v] & kLower) | c1[v] << 32, second = (c2[v] & kLower) | c3[v] << 32;
      char* to = out + at + v * 2 * kVectorBytes;
      store(to, even_pairs(first, second));
      store(to + kVectorBytes, odd_pairs(first, second));
    }
  }
}

}  // namespace
}  // namespace trireme::compress
