#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace trireme::nn {

/// at::parallel_for: calls body(begin, end) for parts of a range of at least `grain` (but the last)
/// on libtorch's threads, and returns when all have ended. libtorch's own is a template that is a
/// plain loop wherever it is compiled without OpenMP, as everything here is but parallel_loop.cpp.
void parallel_loop(int64_t begin, int64_t end, int64_t grain,
                   c10::function_ref<void(int64_t, int64_t)> body);

}  // namespace trireme::nn
