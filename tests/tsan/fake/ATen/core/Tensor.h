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

}  // namespace at
