#pragma once

#include <c10/core/Event.h>

#include <mutex>
#include <utility>
#include <vector>

namespace trireme::comm::nccl {

/// Events of CUDA that are used again: making and ending one costs the host more than recording it.
class EventPool {
 public:
  c10::Event take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return c10::Event(c10::kCUDA);
    c10::Event event = std::move(free_.back());
    free_.pop_back();
    return event;
  }

  /// A stream that was told to wait for the event still waits for what was recorded then.
  void give_back(c10::Event event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(event));
  }

 private:
  std::mutex mutex_;
  std::vector<c10::Event> free_;
};

}  // namespace trireme::comm::nccl
