#include "trireme/nn/matvec.h"

namespace trireme::nn {

namespace {

// Vectors of 16 floats: one register of AVX-512, two of AVX2, four of SSE. A row is summed in four
// of them, because one addition takes longer than the load of its operands:
//
//     row    | a a a a | b b b b | c c c c | d d d d | a a a a | ...      each letter: 16 floats
//     sum    ((a + b) + (c + d)), then its 16 floats, then what is left over at the row's end
//
// The rows lie one after the other, so that the prefetch of a row's end is the beginning of the
// next.
using Floats [[gnu::vector_size(64), gnu::aligned(4), gnu::may_alias]] = float;
constexpr int64_t kFloats = 16, kSums = 4, kBlock = kFloats * kSums;
constexpr int64_t kAhead = 512;  // floats: 2 KiB

inline __attribute__((always_inline)) const Floats& at(const float* from) {
  return *reinterpret_cast<const Floats*>(from);
}

inline __attribute__((always_inline)) void body(const float* weight, const float* x, float* y,
                                                int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row, weight += width) {
    Floats a{}, b{}, c{}, d{};
    int64_t i = 0;
    for (; i + kBlock <= width; i += kBlock) {
      for (int64_t line = 0; line < kSums; ++line)
        __builtin_prefetch(weight + i + kAhead + line * kFloats);
      a += at(weight + i) * at(x + i);
      b += at(weight + i + kFloats) * at(x + i + kFloats);
      c += at(weight + i + 2 * kFloats) * at(x + i + 2 * kFloats);
      d += at(weight + i + 3 * kFloats) * at(x + i + 3 * kFloats);
    }
    for (; i + kFloats <= width; i += kFloats) a += at(weight + i) * at(x + i);
    const Floats all = (a + b) + (c + d);
    float sum = 0;
    for (int64_t lane = 0; lane < kFloats; ++lane) sum += all[lane];
    for (; i < width; ++i) sum += weight[i] * x[i];
    y[row] = sum;
  }
}

void plain(const float* weight, const float* x, float* y, int64_t rows, int64_t width) {
  body(weight, x, y, rows, width);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void avx2(const float* weight, const float* x, float* y,
                                              int64_t rows, int64_t width) {
  body(weight, x, y, rows, width);
}
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512"))) void
avx512(const float* weight, const float* x, float* y, int64_t rows, int64_t width) {
  body(weight, x, y, rows, width);
}

MatvecKernel pick() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2;
  return plain;
}
#else
MatvecKernel pick() {
  return plain;
}
#endif

}  // namespace

MatvecKernel matvec_kernel() {
  static const MatvecKernel kernel = pick();
  return kernel;
}

}  // namespace trireme::nn
