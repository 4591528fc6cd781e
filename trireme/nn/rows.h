#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "trireme/nn/parallel_loop.h"
#include "trireme/nn/row_kernels.h"

namespace trireme::nn {

// How layers call the row kernels of the CPU.

/// A contiguous tensor in a dtype that the kernels know: 16 bits become float32.
inline at::Tensor widened(const at::Tensor& x) {
  return x.to(at::promote_types(x.scalar_type(), at::kFloat)).contiguous();
}

/// The rows of [..., width].
inline int64_t rows_in(const at::Tensor& x) {
  return x.size(-1) > 0 ? x.numel() / x.size(-1) : 0;
}

/// Calls body(float()) or body(double()).
template <class Body>
void each_float(at::ScalarType dtype, const Body& body) {
  if (dtype == at::kDouble)
    body(double());
  else
    body(float());
}

/// Calls body(begin, end) for ranges of the rows of x, on several threads if that is worth it.
template <class Body>
void over_rows(const at::Tensor& x, const Body& body) {
  constexpr int64_t kElems = 16384;  // of a thread at least
  parallel_loop(0, rows_in(x), std::max<int64_t>(1, kElems / x.size(-1)), body);
}

}  // namespace trireme::nn
