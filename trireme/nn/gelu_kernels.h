#pragma once

#include <cstdint>

namespace trireme::nn {

/// GELU by tanh of floats: y of x, and dx of x and dy. One source, compiled for several kinds of
/// CPU; the best that this one has is picked at run time.
struct GeluKernels {
  void (*forward)(const float* x, float* y, int64_t count);
  void (*backward)(const float* x, const float* dy, float* dx, int64_t count);
};

const GeluKernels& gelu_kernels();

}  // namespace trireme::nn
