#pragma once

#include <cstddef>
#include <cstdint>

namespace at {

/// Stands in for torch's tensor, so that comm/ compiles without torch: ThreadSanitizer then sees
/// every access, and no uninstrumented libtorch in between. Memory that somebody else owns.
struct Tensor {
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

/// And for its device: there is one.
struct Device {
  bool is_cpu() const { return true; }
};
constexpr Device kCPU;

}  // namespace at
