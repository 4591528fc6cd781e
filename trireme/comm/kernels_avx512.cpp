// CPUs with AVX-512 F, BW, VL and DQ.
#include "trireme/comm/vectors_avx512.h"
// After it: the kernels are made of its vectors.
#include "trireme/comm/kernels_body.h"

namespace trireme::comm {
namespace {

void stream(char* to, Register value) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bits_as<__m512i>(value));
}

void end_of_stream() {
  _mm_sfence();
}

}  // namespace

extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = {"avx512", reduce, fold, divide, copy, copy_streaming};

}  // namespace trireme::comm
