#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::cuda {

/// The gradient of a table of `rows` rows that was looked up by `index`: for each row the sum of dy
/// over the places that asked for it, in float32, rounded once, in a fixed order. dy is [places,
/// width]; the result has its dtype.
at::Tensor embedding_gradient(const at::Tensor& dy, const at::Tensor& index, int64_t rows);

}  // namespace trireme::cuda
