#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "trireme/parallel/compressed_sum.h"

namespace trireme::parallel {

/// Runs compressed sums on a thread of its own, while backward goes on.
///
///   backward      ── start(a) ─────── start(b) ──────────────────────────── wait(a) wait(b)
///   this thread      encode a, send   encode b, send   a came: add up,   b came: ...   decode a, b
///                                                      send back
///
/// Sums of a lane run each of their two rounds in the order in which they were started; sums of
/// different lanes do not wait for each other. The thread polls rounds that are under way, so that
/// it can encode a block that comes meanwhile. Once backward waits, and only one lane has sums, no
/// block can come: then it sleeps until the round ends.
///
/// If a sum throws, all sums that are not done fail with it, and so do later ones.
class SumThread {
 public:
  class Sum;
  using Begin = std::function<std::unique_ptr<CompressedSum>()>;

  SumThread() = default;
  ~SumThread();
  SumThread(const SumThread&) = delete;
  SumThread& operator=(const SumThread&) = delete;

  /// Starts a sum: `begin` runs on the thread, on the caller's stream if `device` is a GPU.
  std::shared_ptr<Sum> start(const comm::Communicator& lane, at::Device device, Begin begin);
  /// Waits until the sum is written. Throws what it failed with.
  void wait(Sum& sum);

 private:
  using Clock = std::chrono::steady_clock;
  class AsCaller;

  void run();
  bool has_one_lane() const;
  bool advance_one();
  bool finish_round(Sum& one);
  void end(Sum& one, const std::exception_ptr& error);
  void fail(const std::exception_ptr& error);

  std::mutex mutex_;
  std::condition_variable queued_, done_;
  std::vector<std::shared_ptr<Sum>> queue_;  // started, not seen by the thread yet
  int waiting_ = 0;                          // for sums that are not done
  Clock::time_point waiting_since_ = {};
  bool stops_ = false;

  // Of the thread.
  std::deque<std::shared_ptr<Sum>> sums_;     // not done yet, in order
  std::vector<std::shared_ptr<Sum>> failed_;  // keeps what they have started
  std::exception_ptr failure_;

  std::jthread thread_;  // from the first sum on
};

}  // namespace trireme::parallel
