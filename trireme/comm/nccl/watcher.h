#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trireme/comm/nccl/channel.h"

namespace trireme::comm::nccl {

/// Watches the channels of one rank's world on a thread of its own, because nobody waits for an op
/// on the GPU: its caller goes on at once, and a kernel that waits for a dead rank waits for ever.
///
///   start()      caller's thread: kernel ────> the channel's stream
///     │                           sentinel ──> hosts compare, record, name who is missing
///     └─wake()─> watcher, every 10 ms while anything is in flight:
///                  steps the sentinels ──────── a mismatch, or a rank that left: fails the world
///                  asks the events ──────────── too long: fails the world, names who is missing
///                  asks NCCL for errors ─────── fails the world, unless the monitor knows better
///                  has the world failed? ────── aborts all communicators: their kernels end,
///                                               and every wait() throws the first cause
///
/// It also ends communicators that are no longer used, once their kernels are over.
class Watcher {
 public:
  /// `host`: any group of the world.
  explicit Watcher(std::shared_ptr<GroupBackend> host);
  /// Ends what is left: normally if that takes less than 5 s, else by an abort. If an exception
  /// unwinds the stack, it fails the world first.
  ~Watcher();

  void add(std::shared_ptr<Channel> channel);
  /// The channel's group is gone: ends the communicator when its kernels are over.
  void retire(const std::shared_ptr<Channel>& channel);

  /// Something has been started. Costs a few nanoseconds while the thread is awake.
  void wake() {
    if (idle_.load()) wake_thread();
  }

 private:
  void wake_thread();
  void run(const std::stop_token& stop);
  void look(std::chrono::nanoseconds elapsed);
  bool is_busy();
  void sleep(const std::stop_token& stop);
  void abort_all();
  void destroy_retired();
  void finish();
  std::vector<std::shared_ptr<Channel>> channels();

  const std::shared_ptr<GroupBackend> host_;
  const int exceptions_ = std::uncaught_exceptions();  ///< in flight when it was made
  std::mutex mutex_;
  std::condition_variable_any wakes_;
  std::vector<std::shared_ptr<Channel>> channels_, retired_;
  std::atomic<bool> idle_{false};
  std::jthread thread_;  ///< starts with the first channel
};

}  // namespace trireme::comm::nccl
