#pragma once

#include <atomic>
#include <thread>

namespace trireme::train {

/// Handles Ctrl-C, SIGTERM and SIGHUP (unless nohup ignores it) on its own thread, so that they
/// also work inside a collective. Before `defer` there is nothing to save, and a signal ends the
/// process at once with 128 + its number. After it, the first signal is remembered and the second
/// ends the process. Make this object before any other thread is started, because it blocks the
/// signals in all later threads.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();

  void defer() const { deferred_ = true; }

  /// Acts as if this signal had come.
  void stop_by(int signal) const;

  /// The signal that came first, or 0.
  int asked() const { return first_.load(std::memory_order_relaxed); }

 private:
  mutable std::atomic<int> first_ = 0;
  mutable std::atomic<bool> deferred_ = false;
  std::jthread listener_;
};

}  // namespace trireme::train
