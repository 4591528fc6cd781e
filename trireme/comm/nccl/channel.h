#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/comm/group_backend.h"
#include "trireme/comm/nccl/flight.h"
#include "trireme/comm/nccl/gpu.h"
#include "trireme/comm/nccl/library.h"

namespace trireme::comm::nccl {

/// All calls of NCCL are made under this lock, so that the groups of two threads do not mix.
std::timed_mutex& launch_lock();

/// Whether several ranks use one GPU.
enum class Sharing : uint8_t { GpuOfItsOwn, SharedGpu };

/// One communicator of NCCL with a stream of its own, and the ops that are in flight on it. A group
/// of ranks has one for its collectives, and one for each peer and direction that it sends to or
/// receives from: NCCL has no tags, and what runs on one stream waits for what is before it.
///
///   New ──first op──> Meeting ──the id has come──> Initializing ──> Ready ──> Finalizing
///                                                            any of them ──> Broken
///
/// Nothing here waits for a peer. NCCL connects the ranks on a thread of ours (Initializing), and
/// ends a communicator on one (Finalizing). Ops that are started before it is Ready are queued, and
/// whoever comes next launches them: wait(), the next op, or the watcher.
///
/// The communicators are what NCCL calls blocking: a non-blocking one starts a thread for every op,
/// which takes 150 us. A call of a communicator that is connected does not wait for a peer, and an
/// abort from another thread ends any kernel that does.
class Channel {
 public:
  struct Members {
    std::vector<int> ranks;  ///< of the host group, in the order of NCCL's ranks
    int rank = 0;            ///< of this process among them
    enum class Use : uint8_t { Collectives, OneDirection } use = Use::Collectives;
  };
  Channel(std::shared_ptr<GroupBackend> host, Members members, c10::Device device, Sharing sharing);
  ~Channel();

  c10::Device device() const { return device_; }
  const c10::Stream& stream() const { return stream_.get(); }
  World& world() const { return host_->world(); }
  /// Whether an op of these calls connects ranks first, and so cannot go into a graph.
  bool connects(const std::vector<Call>& calls) const;

  /// Takes over a communicator that ncclCommSplit made.
  void adopt(Library::Comm comm);
  /// Collective over the members. Makes part of a communicator out of this one; null if `color` is
  /// kNoColor.
  Library::Comm split(int color, int key);

  std::shared_ptr<Flight> make_flight(const core::OpInfo& info, uint64_t number) const {
    return std::make_shared<Flight>(info, number, events_);
  }
  /// Launches the op, or queues it; then calls `behind_it`, before the watcher sees the op. `ready`
  /// has been recorded.
  void start(const std::shared_ptr<Flight>& flight, const std::function<void()>& behind_it);
  /// Watches work that the caller has put on its own stream between `ready` and `done`: a replay.
  void watch(const std::shared_ptr<Flight>& flight);
  /// The same as start while the caller's stream is being captured.
  void start_captured(const std::shared_ptr<Flight>& flight);
  /// Returns when the op has been launched. Throws if the world has failed.
  void finish_launch(Flight& flight);
  /// Whether the op is complete, and not merely ended by an abort.
  bool finished(Flight& flight);
  /// The world has failed: returns when the GPU no longer works on the op's memory, or soon after.
  void settle(Flight& flight);

  /// Returns when NCCL has connected the ranks.
  void wait_until_ready();
  Library::Comm comm() const { return comm_; }

  // For the watcher.

  /// Launches what can be launched, forgets what is complete, and reports what took too long or
  /// failed.
  void look(std::chrono::nanoseconds elapsed);
  bool is_busy() const;
  bool has_flights() const;
  /// Gives up the communicator, to be aborted. Null if there is none.
  Library::Comm take_for_abort();
  /// One step of a normal end: returns whether the communicator is gone.
  bool step_destruction();
  /// Forgets the flights of a world that has failed.
  void drop_flights();

 private:
  enum class State : uint8_t { New, Meeting, Initializing, Ready, Finalizing, Broken };
  /// Calls of NCCL that wait for peers, on a thread of their own, which may outlive the channel.
  struct Background {
    std::atomic<bool> done{false};
    Library::Comm comm = nullptr;
    std::string error = {};
  };

  // The lock is held.
  void advance();
  bool step();
  void meet();
  void init_communicator();
  void connect_pairs();
  void run_in_background(std::function<void(Background&)> body);
  bool poll();
  void look_for_errors();
  bool launch_next();
  void launched(Flight& flight);
  void fail(const std::string& what);
  void compare_when_known();
  void forget_finished();
  void count_time(std::chrono::nanoseconds elapsed);
  void report_timeout(Flight& flight);
  void report_error();

  bool has_queued() const {
    return !flights_.empty() && flights_.back()->state == Flight::State::Queued;
  }
  bool check_finished(Flight& flight) const;
  bool is_on_one_host() const;
  bool is_pair() const { return members_.use == Members::Use::OneDirection; }
  void wait_while(const std::function<bool()>& busy, const core::OpInfo& info, uint64_t number);

  const std::shared_ptr<GroupBackend> host_;
  const Members members_;
  const c10::Device device_;
  const Sharing sharing_;
  OwnStream stream_;
  const std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>();

  mutable std::timed_mutex mutex_;
  State state_ = State::New;
  Library::Comm comm_ = nullptr;
  std::shared_ptr<Background> background_;  ///< while Initializing and Finalizing
  bool aborted_ = false, captured_ = false;
  bool pairs_connected_ = false;                      ///< each member can send to each other one
  at::Tensor id_;                                     ///< the unique id, as bytes
  at::Tensor first_bytes_;                            ///< on the GPU: see init_communicator
  std::vector<std::shared_ptr<PendingOp>> messages_;  ///< that carry it
  std::deque<std::shared_ptr<Flight>> flights_;       ///< in the order in which they were started
  std::string error_;
  std::chrono::steady_clock::time_point error_since_;
};

}  // namespace trireme::comm::nccl
