#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::cuda {

/// Which heads of a projection [B, T, (q + 2 kv) D] rotate with the position, and how.
struct RotaryHeads {
  int64_t q = 1, kv = 1;
  bool neighbours = false;    ///< x[2 i] with x[2 i + 1], instead of x[i] with x[i + D / 2]
  at::Tensor cosines, sines;  ///< float32 [T, D / 2]
};

/// Rotates q and k of a contiguous projection in place.
void rotate(const at::Tensor& qkv, const RotaryHeads& heads);

/// The gradient of the projection before it was rotated, from those of its parts [B, heads, T, D]
/// in any memory format whose last dim is contiguous. One pass instead of three copies.
at::Tensor unrotated_gradient(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv,
                              const RotaryHeads& heads);

}  // namespace trireme::cuda
