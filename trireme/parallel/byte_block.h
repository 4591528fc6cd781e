#pragma once

#include <ATen/TensorUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace trireme::parallel {

/// Tensors in a block of bytes begin at multiples of this: 16 elements of the widest dtype.
constexpr int64_t kAlignBytes = 128;

constexpr int64_t padded(int64_t bytes) {
  return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

/// A tensor on part of a block of bytes. Not a view: optimizers may detach it in place.
inline at::Tensor tensor_on(const at::Tensor& block, int64_t offset_bytes, at::IntArrayRef shape,
                            at::ScalarType dtype) {
  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t begin = block.storage_offset() + offset_bytes;  // its items are bytes
  return at::empty({0}, block.options().dtype(dtype))
      .set_(block.storage(), begin / item, shape, at::detail::defaultStrides(shape));
}

}  // namespace trireme::parallel
