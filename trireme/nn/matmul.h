#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn {

/// x W^T + b, not differentiable, by whichever library is faster on this CPU: on AMD's, MKL has
/// only a general kernel, and oneDNN's are about a tenth faster. Elsewhere, and for other dtypes
/// and devices, it is at::linear. x is [..., in], W [out, in]; `bias` may be undefined.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace trireme::nn
