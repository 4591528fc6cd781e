#pragma once

#include <cstdint>

namespace trireme::nn {

/// GELU of floats by tanh: y from x, and dx from x and dy. One source is compiled for several kinds
/// of CPU, and the best that this one supports is picked at run time.
struct GeluKernels {
  void (*forward)(const float* x, float* y, int64_t count);
  void (*backward)(const float* x, const float* dy, float* dx, int64_t count);
};

const GeluKernels& gelu_kernels();

}  // namespace trireme::nn
