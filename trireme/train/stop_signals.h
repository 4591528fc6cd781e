#pragma once

#include <atomic>
#include <thread>

namespace trireme::train {

/// Ctrl-C, SIGTERM and SIGHUP (unless nohup ignores it), heard by a thread of their own, so that
/// they work whatever the others are doing, a collective included. Until `defer` there is nothing
/// to save, and a signal ends the process at once, with 128 + its number; from then on the first is
/// remembered, and the second does. Make one before any other thread is started: it blocks the
/// signals in all that come after.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();

  void defer() const { deferred_ = true; }

  /// As if this signal had come.
  void stop_by(int signal) const;

  /// The signal that came first, or 0.
  int asked() const { return first_.load(std::memory_order_relaxed); }

 private:
  mutable std::atomic<int> first_ = 0;
  mutable std::atomic<bool> deferred_ = false;
  std::jthread listener_;
};

}  // namespace trireme::train
