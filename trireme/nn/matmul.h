#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn {

/// x W^T + b, differentiable, by whichever library is faster on this CPU: on AMD's, MKL has only a
/// general kernel, and oneDNN's are about a tenth faster. Elsewhere, and for other dtypes and
/// devices, it is at::linear. `bias` may be undefined.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// x W^T of matrices, not differentiable, by the same choice.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight);

}  // namespace trireme::nn
