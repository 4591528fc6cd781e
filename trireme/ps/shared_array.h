#pragma once

#include <atomic>
#include <memory>

#include "trireme/ps/memory.h"
#include "trireme/ps/payload.h"

namespace trireme::ps {

/// Numbers that are written only while nobody else holds them: whoever holds a payload of them sees
/// them as they were.
template <class T>
class SharedArray {
 public:
  SharedArray() = default;
  SharedArray(Memory& memory, size_t count) : count_(count) {
    auto bytes = memory.take(count * sizeof(T));
    memory_ = {bytes, static_cast<T*>(bytes.get())};
  }

  size_t size() const { return count_; }
  const T* data() const { return memory_.get(); }
  /// Only if `is_alone`.
  T* mutable_data() { return memory_.get(); }
  /// Whether no payload holds it. What others read of it until now happens before what comes.
  bool is_alone() const {
    const bool alone = memory_.use_count() <= 1;
    std::atomic_thread_fence(std::memory_order_acquire);
    return alone;
  }
  Payload payload() const {
    return {memory_, {reinterpret_cast<const char*>(memory_.get()), count_ * sizeof(T)}};
  }

 private:
  std::shared_ptr<T[]> memory_;
  size_t count_ = 0;
};

}  // namespace trireme::ps
