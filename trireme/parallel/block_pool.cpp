#include "trireme/parallel/block_pool.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace trireme::parallel {

at::Tensor BlockPool::take(int64_t bytes) {
  const auto fits = std::find_if(free_.begin(), free_.end(),
                                 [&](const at::Tensor& block) { return block.numel() >= bytes; });
  if (fits != free_.end()) {
    at::Tensor block = std::move(*fits);
    free_.erase(fits);
    return block;
  }
  if (num_blocks_ >= most_ && !free_.empty()) {  // no free block fits: replace the largest
    bytes_ -= free_.back().numel();
    free_.pop_back();
    --num_blocks_;
  }
  ++num_blocks_;
  bytes_ += bytes;
  return at::empty({bytes}, options_);
}

void BlockPool::give(at::Tensor block) {
  if (num_blocks_ > most_) {
    --num_blocks_;
    bytes_ -= block.numel();
    return;
  }
  const auto place =
      std::upper_bound(free_.begin(), free_.end(), block.numel(),
                       [](int64_t size, const at::Tensor& other) { return size < other.numel(); });
  free_.insert(place, std::move(block));
}

}  // namespace trireme::parallel
