#include "trireme/comm/kernels.h"
#include "trireme/compress/kernels.h"

namespace trireme::compress {

// One of each per kernels_<name>.cpp.
extern const Kernels kBaseKernels, kAvx2Kernels, kAvx512Kernels;

std::vector<const Kernels*> runnable_kernels() {
  std::vector<const Kernels*> runnable;
  for (const Kernels* each : {&kBaseKernels, &kAvx2Kernels, &kAvx512Kernels})
    if (comm::cpu_supports(each->name)) runnable.push_back(each);
  return runnable;
}

}  // namespace trireme::compress
