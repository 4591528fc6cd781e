#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::cuda {

/// The sums of the columns of x [rows, width], of the dtype of `to` [width] (16 bits or float32),
/// added up in float32 in a fixed order. The gradient of a bias.
void column_sums(const at::Tensor& to, const at::Tensor& x);

/// The last part of it: adds up `parts` [slices, width], float32.
void column_totals(const at::Tensor& to, const at::Tensor& parts);

}  // namespace trireme::cuda
