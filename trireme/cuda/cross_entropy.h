#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::cuda {

/// The cross-entropy of each row of `logits` [rows, classes], in nats, float32. With `gradient`,
/// logits become their own gradients, times `scale` (one float32 number on the device; undefined:
/// 1). A target of `ignored` counts nothing; one that is no class gives nan.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, int64_t ignored,
                         bool gradient, const at::Tensor& scale);

}  // namespace trireme::cuda
