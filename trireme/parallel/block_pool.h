#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::parallel {

/// Blocks of bytes that are reused, because fresh memory costs a page fault for every 4 KiB. Keeps
/// at most `most` blocks; there are more only while more are in use at the same time.
class BlockPool {
 public:
  BlockPool(int most, at::TensorOptions options) : most_(most), options_(options) {}

  /// A block of at least that many bytes: the smallest free one that fits, or a new one, which may
  /// replace a free one that is too small.
  at::Tensor take(int64_t bytes);
  void give(at::Tensor block);

  /// From now on it keeps so many blocks.
  void keep(int most) { most_ = most; }

  int64_t bytes() const { return bytes_; }  ///< of all blocks, in use or free

 private:
  int most_, num_blocks_ = 0;
  int64_t bytes_ = 0;
  at::TensorOptions options_;
  std::vector<at::Tensor> free_;  // in ascending order of size
};

}  // namespace trireme::parallel
