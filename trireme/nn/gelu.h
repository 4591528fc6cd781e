#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn {

/// GPT-2's GELU, 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), differentiable. On the CPU
/// in float32 our own kernels compute it as x / (1 + exp(-2u)): one exponential instead of torch's
/// tanh, and within 2e-7 of it. Otherwise it is at::gelu.
at::Tensor gelu_tanh(const at::Tensor& x);

}  // namespace trireme::nn
