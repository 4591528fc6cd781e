#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn {

/// x as a matrix: [..., width] becomes [rows, width].
inline at::Tensor rows_of(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

/// x W^T + b, not differentiable, by the library that is faster. On AMD's CPUs MKL has only a
/// general kernel, and oneDNN is about a tenth faster. On a GPU in 16 bits it is cuBLASLt, with the
/// fastest of its algorithms. A single row of floats on the CPU, as generating text has it, takes
/// as long as reading W does: see matvec.h. Otherwise it is at::linear. x is [..., in], W [out,
/// in]; `bias` may be undefined, and so may `residual`, [..., out], which is added.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                   const at::Tensor& residual = {});

/// The gradient of its input, dy W, by the same choice of library. If `gelu_of` is defined, the
/// input was its GELU (tanh form), and this is the gradient of `gelu_of`.
at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& weight,
                          const at::Tensor& gelu_of = {});

/// The gradient of a weight, dy^T x of [rows, out] and [rows, in], by the same choice of library.
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x);

/// The gradient of a bias: the sum of dy, [..., out], over all rows.
at::Tensor bias_gradient(const at::Tensor& dy, at::ScalarType dtype);

/// Can these operands be multiplied by the fused kernels of a GPU, in 16 bits?
bool on_gpu_in_16_bits(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// gelu(x W^T + b) and what it is the GELU of, z = x W^T + b. For operands on a GPU in 16 bits.
struct GeluProduct {
  at::Tensor gelu, z;
};
GeluProduct gelu_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace trireme::nn
