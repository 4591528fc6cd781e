#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::cuda {

/// GPT-2's GELU (the tanh form) of a contiguous tensor, computed in float32.
at::Tensor gelu(const at::Tensor& x);
/// dy times its derivative at x.
at::Tensor gelu_backward(const at::Tensor& dy, const at::Tensor& x);

}  // namespace trireme::cuda
