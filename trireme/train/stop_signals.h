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

  /// What this rank adds to a sum over all ranks: 0 if no signal came. From the sum, every rank can
  /// tell the gravest signal of all, with up to a million ranks.
  double wish() const;

 private:
  mutable std::atomic<int> first_ = 0;
  mutable std::atomic<bool> deferred_ = false;
  std::jthread listener_;
};

/// The exit code of a run that stopped before its end because of this sum of wishes.
int exit_code_of(double sum_of_wishes);

}  // namespace trireme::train
