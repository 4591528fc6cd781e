#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn {

/// x W^T + b, not differentiable, by the library that is faster on this CPU. On AMD's CPUs MKL has
/// only a general kernel, and oneDNN is about a tenth faster. Elsewhere, and for other dtypes and
/// devices, it is at::linear. x is [..., in], W [out, in]; `bias` may be undefined.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

/// The gradient of a weight, dy^T x of [rows, out] and [rows, in], by the same choice of library.
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x);

}  // namespace trireme::nn
