// CPUs other than x86-64: vectors of 16 bytes, which is what NEON has, and halves converted by
// hand.
#include "trireme/comm/vectors_base.h"
// After it: the kernels are made of its vectors.
#include "trireme/comm/kernels_body.h"

namespace trireme::comm {
namespace {

/// gcc has no non-temporal store for these CPUs.
void stream(char* to, Register value) {
  store(to, value);
}

void end_of_stream() {
  __atomic_thread_fence(__ATOMIC_RELEASE);
}

constexpr Kernels kBaseKernels = {"base", reduce, fold, divide, copy, copy_streaming};

}  // namespace

std::vector<const Kernels*> runnable_kernels() {
  return {&kBaseKernels};
}

}  // namespace trireme::comm
