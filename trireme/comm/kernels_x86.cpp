#include "trireme/comm/kernels.h"

namespace trireme::comm {

// One of each per kernels_<name>.cpp.
extern const Kernels kBaseKernels, kAvx2Kernels, kAvx512Kernels;

std::vector<const Kernels*> runnable_kernels() {
  std::vector<const Kernels*> runnable = {&kBaseKernels};
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("f16c")) return runnable;
  runnable.push_back(&kAvx2Kernels);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    runnable.push_back(&kAvx512Kernels);
  return runnable;
}

}  // namespace trireme::comm
