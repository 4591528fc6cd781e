#pragma once

#include <cstdint>
#include <memory>

namespace trireme::train {

/// Proportional set size of this process: pages shared with other ranks count by their share.
int64_t pss_mib();

/// Counts the bytes of the tensors that this thread makes and frees while it lives: those of
/// libtorch's allocators, and a rank's own memory of Communicator::allocate.
class TensorMemory {
 public:
  TensorMemory();
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  int64_t now() const;
  int64_t peak() const;

 private:
  class Hook;
  std::shared_ptr<Hook> hook_;
};

}  // namespace trireme::train
