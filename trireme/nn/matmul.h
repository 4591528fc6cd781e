#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn {

/// x W^T + b, not differentiable, by whichever library is faster on this CPU: on AMD's, MKL has
/// only a general kernel, and oneDNN's are about a tenth faster. Elsewhere, and for other dtypes
/// and devices, it is at::linear. x is [..., in], W [out, in]; `bias` may be undefined.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

/// dy^T x of matrices, [rows, out] and [rows, in]: the gradient of a weight, by the same choice.
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x);

}  // namespace trireme::nn
