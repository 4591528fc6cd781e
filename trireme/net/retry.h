#pragma once

#include <algorithm>
#include <thread>

#include "trireme/net/socket.h"

namespace trireme::net {

/// Growing sleeps between retries, where nothing can be polled. Never sleeps past the deadline.
class Backoff {
 public:
  Backoff(Clock::duration first, Clock::duration longest) : next_(first), longest_(longest) {}

  /// Sleeps unless the deadline has passed.
  Readiness sleep(Deadline deadline) {
    const auto now = Clock::now();
    if (now >= deadline) return Readiness::DeadlinePassed;
    std::this_thread::sleep_for(std::min<Clock::duration>(next_, deadline - now));
    next_ = std::min(next_ * 2, longest_);
    return Readiness::Ready;
  }

 private:
  Clock::duration next_;
  Clock::duration longest_;
};

}  // namespace trireme::net
