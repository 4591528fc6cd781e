#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::parallel {

/// Blocks of bytes that are used for a while and again: at most `most` of them, unless more are
/// needed at the same time. Fresh memory costs a page fault for every 4 KiB.
class BlockPool {
 public:
  BlockPool(int most, at::TensorOptions options) : most_(most), options_(options) {}

  /// One of at least that many bytes: the smallest that is free, or a new one in the place of one
  /// that is too small.
  at::Tensor take(int64_t bytes);
  void give(at::Tensor block);

  int64_t bytes() const { return bytes_; }  ///< of all, in use or not

 private:
  int most_, num_blocks_ = 0;
  int64_t bytes_ = 0;
  at::TensorOptions options_;
  std::vector<at::Tensor> free_;  // by size
};

}  // namespace trireme::parallel
