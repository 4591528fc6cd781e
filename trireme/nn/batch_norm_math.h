#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn::batch_norm {

// What batch norm computes on one rank, of tensors [rows, channels, ...] in any memory format that
// torch knows. Numbers per channel are double. Not differentiable, no communication.

/// The number of elements of a channel, the mean of each channel and the sum of squared distances
/// from it, in this order: [1 + 2 channels]. Zeros if there are no elements.
at::Tensor moments_of(const at::Tensor& x);

/// The moments of all elements together, from those of parts, [parts, 1 + 2 channels]: exact for
/// parts of any sizes (Chan et al. 1979).
at::Tensor merged(const at::Tensor& parts);

/// The fields of moments.
struct Moments {
  explicit Moments(const at::Tensor& all);
  at::Tensor count, mean, squares;  ///< count is one number, [1]
};

/// (x - mean) scale + bias, plus `residual` if it is defined, and without what is negative if
/// `relu`.
struct Affine {
  at::Tensor mean, scale, bias;
};
at::Tensor normalized(const at::Tensor& x, const Affine& by, const at::Tensor& residual, bool relu);

/// The gradient of the output. Where `output` is defined, only the gradients of what is positive
/// there pass (ReLU).
struct OutputGradient {
  at::Tensor dy, output;
  /// Those that pass. Afterwards they are `dy`, and `output` is undefined.
  at::Tensor pass();
};
/// Sums over the elements of each channel: of the gradients that pass, and of their products with
/// x - mean. [2, channels]. `keep`: also does gradient.pass(), in the same pass over memory.
enum class Passed : uint8_t { Keep, Forget };
at::Tensor gradient_sums(const at::Tensor& x, OutputGradient& gradient, const at::Tensor& mean,
                         Passed passed);

/// (g - offset - (x - mean) slope) scale of the gradients g that pass.
struct Slope {
  at::Tensor mean, scale, offset, slope;
};
at::Tensor input_gradient(const at::Tensor& x, const OutputGradient& gradient, const Slope& by);

}  // namespace trireme::nn::batch_norm
