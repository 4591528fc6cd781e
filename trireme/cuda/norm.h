#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::cuda {

/// Whether these kernels can normalize rows of x: a CUDA tensor of up to 4096 elements a row.
bool can_normalize(const at::Tensor& x);

/// What the backward of a norm needs besides the input.
struct NormStatistics {
  at::Tensor mean, rstd;  ///< float32, one per row; RMS norm has no mean
};

/// y = (x - mean) rstd g + b over rows of [rows, width]. All have the same dtype. Without a bias
/// (an undefined tensor) it is RMS norm: y = x rstd g, with rstd = 1 / sqrt(mean(x^2) + epsilon).
NormStatistics norm(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight,
                    const at::Tensor& bias, double epsilon);

/// The same y again, to the bit.
void norm_again(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight,
                const at::Tensor& bias, const NormStatistics& statistics);

struct NormGradients {
  at::Tensor x, weight, bias;  ///< RMS norm has no bias
};
/// The gradients of a norm. `also` is another gradient of x, which is added in the same pass; it
/// may be undefined. Those of weight and bias are added up in float32, in a fixed order.
NormGradients norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                            const NormStatistics& statistics, const at::Tensor& also);

}  // namespace trireme::cuda
