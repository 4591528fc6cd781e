#pragma once

#include <array>
#include <cstdint>

namespace trireme::core {

/// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw 2011): a stateless random function. The same counter
/// and key give the same four words on every machine, so random numbers can be a function of
/// logical coordinates instead of a generator's state.
///
///   one round:   (c0, c1, c2, c3) ->
///                (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0))
///
/// Ten rounds; between them the key grows by the golden ratio and sqrt(3) - 1.
constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter,
                                         std::array<uint32_t, 2> key) {
  constexpr uint32_t kMultiply0 = 0xD2511F53, kMultiply1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{kMultiply0} * counter[0];
    const uint64_t product1 = uint64_t{kMultiply1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

/// The same with a 64-bit seed and a 128-bit position given as two words.
constexpr std::array<uint32_t, 4> philox(uint64_t seed, uint64_t high, uint64_t low) {
  return philox({static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                 static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)},
                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

}  // namespace trireme::core
