#include "trireme/comm/kernels.h"

namespace trireme::comm {

extern const Kernels kBaseKernels;

std::vector<const Kernels*> runnable_kernels() {
  return {&kBaseKernels};
}

}  // namespace trireme::comm
