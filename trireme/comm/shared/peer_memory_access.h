#pragma once

#include "trireme/comm/world.h"

namespace trireme::comm {

/// LocalBox while a rank works in the memory of other ranks. A rank whose world has failed frees
/// its tensors, or returns them to its caller, only when no peer holds one of these:
///
///   this rank                       a rank that fails
///     touches = 1                     the page says: failed
///     failed?  yes: does nothing      waits until no peer's `touches` is 1
///     works
///     touches = 0
///
/// Both sides write before they read, sequentially consistent, so at least one of them sees the
/// other. Hold it for a bounded piece of work, never while waiting.
class PeerMemoryAccess {
 public:
  explicit PeerMemoryAccess(World& world) : touches_(world.seat(world.rank()).touches) {
    touches_.store(1, std::memory_order_seq_cst);
    allowed_ = world.page().first_cause.load(std::memory_order_seq_cst) == 0;
  }
  ~PeerMemoryAccess() { touches_.store(0, std::memory_order_release); }
  PeerMemoryAccess(const PeerMemoryAccess&) = delete;
  PeerMemoryAccess& operator=(const PeerMemoryAccess&) = delete;

  /// False: the world has failed, and the memory may be freed at any moment.
  explicit operator bool() const { return allowed_; }

 private:
  std::atomic<uint32_t>& touches_;
  bool allowed_;
};

}  // namespace trireme::comm
