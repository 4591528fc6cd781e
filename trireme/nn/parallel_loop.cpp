// Compiled with -fopenmp and without a precompiled header (CMakeLists.txt beside the layers).
#include "trireme/nn/parallel_loop.h"

#include <ATen/Parallel.h>

namespace trireme::nn {

void parallel_loop(int64_t begin, int64_t end, int64_t grain,
                   c10::function_ref<void(int64_t, int64_t)> body) {
  at::parallel_for(begin, end, grain, body);
}

}  // namespace trireme::nn
