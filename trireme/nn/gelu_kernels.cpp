#include "trireme/nn/gelu_kernels.h"

#include "trireme/nn/fast_exp.h"

namespace trireme::nn {

namespace {

// The loops are plain, and the compiler vectorizes them. Each is compiled once for each kind of
// CPU, by `target` attributes.
constexpr float kC = 0.7978845608028654F;  // sqrt(2 / pi)
constexpr float kCubic = 0.044715F;

/// The factor by which GELU multiplies x: 1 / (1 + e^(-2u)), u = c (x + 0.044715 x^3).
inline __attribute__((always_inline)) float gate_of(float x) {
  const float u = kC * (x + kCubic * x * x * x);
  return logistic_of(2.0F * u);
}

inline __attribute__((always_inline)) void forward_body(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * gate_of(x[i]);
}

inline __attribute__((always_inline)) void backward_body(const float* x, const float* dy, float* dx,
                                                         int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float gate = gate_of(x[i]);
    const float slope = 2.0F * kC * (1.0F + 3.0F * kCubic * x[i] * x[i]);
    dx[i] = dy[i] * (gate + x[i] * gate * (1.0F - gate) * slope);
  }
}

void forward_plain(const float* x, float* y, int64_t count) {
  forward_body(x, y, count);
}
void backward_plain(const float* x, const float* dy, float* dx, int64_t count) {
  backward_body(x, dy, dx, count);
}

#if defined(__x86_64__)
#define TRIREME_AVX2 __attribute__((target("avx2,fma")))
#define TRIREME_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512")))
TRIREME_AVX2 void forward_avx2(const float* x, float* y, int64_t count) {
  forward_body(x, y, count);
}
TRIREME_AVX2 void backward_avx2(const float* x, const float* dy, float* dx, int64_t count) {
  backward_body(x, dy, dx, count);
}
TRIREME_AVX512 void forward_avx512(const float* x, float* y, int64_t count) {
  forward_body(x, y, count);
}
TRIREME_AVX512 void backward_avx512(const float* x, const float* dy, float* dx, int64_t count) {
  backward_body(x, dy, dx, count);
}

GeluKernels pick() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
    return {forward_avx512, backward_avx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {forward_avx2, backward_avx2};
  return {forward_plain, backward_plain};
}
#else
GeluKernels pick() {
  return {forward_plain, backward_plain};
}
#endif

}  // namespace

const GeluKernels& gelu_kernels() {
  static const GeluKernels kernels = pick();
  return kernels;
}

}  // namespace trireme::nn
