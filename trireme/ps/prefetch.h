#pragma once

#include <cstddef>

namespace trireme::ps {

/// Asks for the memory at an address, which is used soon.
///
/// The empty asm statement keeps the call: gcc 12 takes a function that only prefetches for one
/// without effects, and removes all calls of it.
inline void prefetch(const void* address) {
  __builtin_prefetch(address);
  asm volatile("");
}

/// The same for each line of the caches that these bytes lie in.
inline void prefetch(const void* address, size_t bytes) {
  constexpr size_t kLine = 64;
  for (size_t byte = 0; byte < bytes; byte += kLine)
    prefetch(static_cast<const char*>(address) + byte);
}

}  // namespace trireme::ps
