#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn {

/// A loss is a sum and the weight that it stands for: tokens or samples that counted. Gradients are
/// sums too, and are divided once, by the total weight of all ranks and micro-batches: so that
/// uneven batches, masked labels and ranks with nothing to do give the gradient of one process.
struct Loss {
  at::Tensor sum;     ///< 0-dim, in the graph
  at::Tensor weight;  ///< 0-dim, float64, not in the graph
};

/// Targets of this value count for nothing.
constexpr int64_t kIgnored = -100;

/// Cross-entropy in nats of [rows, classes] logits.
Loss cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

/// Cross-entropy of x W^T, without the logits ever being whole in memory: by chunks of rows, the
/// gradients of x and W computed on the way. x is [..., width], W [classes, width], targets [...].
Loss linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets);

}  // namespace trireme::nn
