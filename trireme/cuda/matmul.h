#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::cuda {

/// Matrix products in 16 bits by cuBLASLt, which can add a bias, a matrix or a GELU before it
/// stores its result: an epilogue, which saves a pass over memory. For each shape its candidate
/// algorithms are timed once, and the fastest is kept on disk: the first choice of cuBLASLt is 5 to
/// 20 % slower for several shapes of GPT-2. (If libtorch was told to be deterministic, the first
/// choice is taken, so that no timing decides about bits.)
///
/// All matrices are row-major. Each function returns false, and does nothing, if cuBLASLt has no
/// algorithm for it (odd sizes, for instance) or if the operands are not 16-bit CUDA matrices with
/// neighbouring elements in a row.
struct ProductOptions {
  at::Tensor bias = {};      ///< [out], added to every row
  at::Tensor residual = {};  ///< [rows, out], added; not together with gelu_of
  /// [rows, out]: receives x W^T + b, and the result is its GELU (the tanh form).
  at::Tensor gelu_of = {};
};
/// y = x W^T, with x [rows, in] and W [out, in].
bool product(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight,
             const ProductOptions& options = {});

/// dx = dy W, with dy [rows, out]. If `gelu_of` is defined, [rows, in], the result is multiplied
/// by the derivative of GELU there.
bool input_gradient(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& weight,
                    const at::Tensor& gelu_of = {});

/// dW = dy^T x, added to what dW holds if `add` is true. dW may be float32.
bool weight_gradient(const at::Tensor& dweight, const at::Tensor& dy, const at::Tensor& x,
                     bool add = false);

}  // namespace trireme::cuda
