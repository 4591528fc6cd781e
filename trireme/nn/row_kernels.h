#pragma once

#include <cstdint>

namespace trireme::nn {

/// RMS norm over rows of `width` elements: y = x r g, with r = 1 / sqrt(mean(x^2) + epsilon).
template <class T>
struct RmsNormRows {
  const T* x;
  const T* weight;
  int64_t width;
  T epsilon;
};

/// Rotary positions over rows of a projection, each of `turned` heads that rotate and `others` that
/// do not:
///
///   row t   | head | head | ... | head |        `head` elements each, of which pairs (a, b) become
///             `turned`      `others`            (a cos - b sin, b cos + a sin)
///
/// The tables have head / 2 cosines and sines a position; row i is at position i modulo positions.
template <class T>
struct TurnedRows {
  const T* cosines;
  const T* sines;
  int64_t positions, head, turned, others;
  bool neighbours;  ///< pairs are x[2 i] with x[2 i + 1], and not x[i] with x[i + head / 2]
};

/// Passes over the rows [begin, end) of matrices of T. One source is compiled for several kinds of
/// CPU, and the best that this one supports is picked at run time.
template <class T>
struct RowKernels {
  /// Also gives r of each row.
  void (*rms_norm)(const RmsNormRows<T>& in, T* y, T* rstd, int64_t begin, int64_t end);
  /// dx = also + r (w - h mean(w h)), with h = x r and w = dy g; adds the sum of dy h to `dweight`.
  /// `also` is another gradient of x, or nullptr.
  void (*rms_norm_backward)(const RmsNormRows<T>& in, const T* rstd, const T* dy, const T* also,
                            T* dx, T* dweight, int64_t begin, int64_t end);
  /// h = silu(gate) up, for rows [gate | up] of 2 x width.
  void (*swiglu)(const T* z, T* h, int64_t width, int64_t begin, int64_t end);
  void (*swiglu_backward)(const T* z, const T* dh, T* dz, int64_t width, int64_t begin,
                          int64_t end);
  /// Turns by the angle times `sign`, which is 1 or -1. `to` may be `from`.
  void (*turn)(const TurnedRows<T>& how, const T* from, T* to, T sign, int64_t begin, int64_t end);
};

template <class T>
const RowKernels<T>& row_kernels();
template <>
const RowKernels<float>& row_kernels();
template <>
const RowKernels<double>& row_kernels();

}  // namespace trireme::nn
