#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::cuda {

/// silu(gate) times up, computed in float32. z is contiguous, [..., 2 n]: gate, then up; the result
/// is [..., n].
at::Tensor swiglu(const at::Tensor& z);
/// The gradient of z from that of the result.
at::Tensor swiglu_backward(const at::Tensor& dh, const at::Tensor& z);

}  // namespace trireme::cuda
