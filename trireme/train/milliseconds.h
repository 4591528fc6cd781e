#pragma once

#include <chrono>

namespace trireme::train {

/// How long ago that was.
inline double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace trireme::train
