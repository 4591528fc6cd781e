#pragma once

#include <cstdint>

namespace trireme::sim {

/// SplitMix64: a run is a function of its seed.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t word = state_;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
    return word ^ (word >> 31);
  }
  /// In [0, bound).
  uint64_t below(uint64_t bound) { return next() % bound; }
  /// In [low, high].
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }
  bool chance(double probability) {
    return static_cast<double>(next() >> 11) * 0x1p-53 < probability;
  }

 private:
  uint64_t state_;
};

}  // namespace trireme::sim
