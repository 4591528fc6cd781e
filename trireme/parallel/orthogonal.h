#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::parallel {

/// Makes the columns of an [n, r] matrix orthogonal to each other and of length 1, in place, by
/// Gram-Schmidt in float64. A column that depends on those before it becomes 0. The same numbers
/// give the same bits whatever the number of threads: all ranks do this for themselves.
void make_orthogonal(const at::Tensor& matrix);

}  // namespace trireme::parallel
