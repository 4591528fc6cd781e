#pragma once

#include <cstdint>
#include <span>

namespace trireme::format {

/// Code points [first, last] are marks of this canonical combining class, which is over 0.
struct CombiningRange {
  uint32_t first, last;
  uint8_t combining;
};
extern const std::span<const CombiningRange> kCombining;

/// A canonical decomposition by one step; `second` is 0 where it is one character only.
struct Decomposition {
  uint32_t code, first, second;
  bool composes;  ///< first and second become code again: it is no composition exclusion
};
extern const std::span<const Decomposition> kDecompositions;

}  // namespace trireme::format
