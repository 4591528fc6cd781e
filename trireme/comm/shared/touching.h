#pragma once

#include "trireme/comm/world.h"

namespace trireme::comm {

/// Held while a rank works in memory that other ranks have shown it. A rank whose world fails frees
/// its tensors, or hands them back to its caller, only when no peer holds one of these:
///
///   this rank                       a rank that fails
///     touches = 1                     the page says: failed
///     failed?  yes: hands off         waits until no peer's `touches` is 1
///     works
///     touches = 0
///
/// Both sides write before they read, in one order that all ranks agree on, so at least one of them
/// sees the other. Hold it for a bounded piece of work, never while waiting.
class Touching {
 public:
  explicit Touching(World& world) : touches_(world.seat(world.rank()).touches) {
    touches_.store(1, std::memory_order_seq_cst);
    allowed_ = world.page().first_cause.load(std::memory_order_seq_cst) == 0;
  }
  ~Touching() { touches_.store(0, std::memory_order_release); }
  Touching(const Touching&) = delete;
  Touching& operator=(const Touching&) = delete;

  /// False: the world has failed, and that memory may go at any moment.
  explicit operator bool() const { return allowed_; }

 private:
  std::atomic<uint32_t>& touches_;
  bool allowed_;
};

}  // namespace trireme::comm
