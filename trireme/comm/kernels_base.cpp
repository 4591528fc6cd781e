// Any x86-64: SSE2, and halves converted by hand.
#include <immintrin.h>

#include "trireme/comm/vectors_base.h"
// After it: the kernels are made of its vectors.
#include "trireme/comm/kernels_body.h"

namespace trireme::comm {
namespace {

void stream(char* to, Register value) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), bits_as<__m128i>(value));
}

void end_of_stream() {
  _mm_sfence();
}

}  // namespace

extern const Kernels kBaseKernels;
const Kernels kBaseKernels = {"base", reduce, fold, divide, copy, copy_streaming};

}  // namespace trireme::comm
