// CPUs with AVX2 and F16C.
#include "trireme/comm/vectors_avx2.h"
// After it: the kernels are made of its vectors.
#include "trireme/comm/kernels_body.h"

namespace trireme::comm {
namespace {

void stream(char* to, Register value) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bits_as<__m256i>(value));
}

void end_of_stream() {
  _mm_sfence();
}

}  // namespace

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = {"avx2", reduce, fold, divide, copy, copy_streaming};

}  // namespace trireme::comm
