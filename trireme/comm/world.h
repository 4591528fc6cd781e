#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trireme/comm/engine.h"
#include "trireme/comm/flight_recorder.h"
#include "trireme/comm/host_page.h"
#include "trireme/comm/memory_pool.h"
#include "trireme/comm/messenger.h"
#include "trireme/comm/streams.h"
#include "trireme/comm/world_options.h"
#include "trireme/core/log.h"
#include "trireme/core/trace.h"

namespace trireme::comm {

class Segments;
class Monitor;

/// Where a rank of the world runs.
struct Member {
  std::string host;  ///< the host's name, for messages
  int64_t pid = 0;
  int host_index = 0;  ///< which host, counted from 0 in the order of ranks
};

/// What differs between ranks that are threads, processes on one host, and processes over sockets.
struct Transport {
  const char* kind = "";         ///< "local", "shm" or "tcp"
  std::shared_ptr<void> memory;  ///< keeps the page mapped
  HostPage* page = nullptr;      ///< of this rank's host
  std::unique_ptr<Streams> streams;
  std::unique_ptr<Sleeper> sleeper;
  std::shared_ptr<Segments> segments;  ///< memory that ranks share; null if they cannot
  std::unique_ptr<Monitor> monitor;    ///< null for threads, which do not die alone
};

/// One rank's side of a world: what all its communicators share. Not a singleton: a process may be
/// in several worlds.
class World : public EngineDelegate {
 public:
  World(int rank, std::vector<Member> members, Transport transport, WorldOptions options);
  ~World() override;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const Member& member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  Seat& seat(int rank) const { return transport_.page->seats[rank]; }
  bool here(int rank) const { return member(rank).host_index == member(rank_).host_index; }
  const char* kind() const { return transport_.kind; }
  const WorldOptions& options() const { return options_; }
  HostPage& page() const { return *transport_.page; }

  Messenger& messenger() { return messenger_; }
  Engine& engine() { return engine_; }
  Segments* segments() const { return transport_.segments.get(); }
  MemoryPool& pool() { return pool_; }
  FlightRecorder& recorder() { return recorder_; }

  /// Counts bytes that this rank has read from the memory of another rank of its host. The engine's
  /// lock is held.
  void took(int owner, int64_t bytes);
  Traffic traffic();

  /// Whether that rank has announced that it leaves.
  bool has_left(int rank) const;

  /// An id for a group of this rank alone. The ids of shared groups are digests and never this
  /// small.
  uint64_t next_lone_id() { return kFirstLoneId + lone_groups_.fetch_add(1); }

  void add(Lane& lane);
  void remove(Lane& lane);

  /// "rank 1 (host b, pid 8812)"
  std::string describe(int rank) const;
  /// " in 1B3 (...)": what that rank last said that it does (note()). Empty if unknown; of other
  /// hosts only the first ranks are known.
  std::string doing(int rank) const;
  void note(std::string_view doing) { seat(rank_).set_note(doing); }

  /// From now on every operation of this rank is added to the trace when it ends.
  void set_trace(std::shared_ptr<core::Trace> trace);

  /// Fails the world with this cause, unless it has failed already, and wakes all ranks.
  void fail(const Cause& cause);

  /// Fails the world: pending and later operations throw.
  void abort(const std::string& why);

  /// The same for a rank that ends because of an exception, which itself says why.
  void abandon();

  /// Tells the others that this rank starts nothing any more. The destructor does it, too.
  void leave();

  // EngineDelegate
  bool failed() const override { return transport_.page->failed(); }
  std::vector<int> left(const std::vector<int>& ranks) const override;
  void report_left(const Task& task, int rank) override;
  void report_timeout(const Task& task, const std::vector<int>& missing,
                      std::chrono::nanoseconds waited) override;
  void report_mismatch(const Mismatch& mismatch) override;
  bool explained(int rank) const override;
  void report_closed(int rank) override;
  void report_broken(const char* what) noexcept override;
  void wait_until_untouched() const override;
  [[noreturn]] void raise(const Task& task) override;
  void started(Task& task) override;
  void finished(const Task& task) override;

  /// Throws if the world has failed; the error names an operation that is about to start.
  void check(const Lane& lane, uint64_t number, const core::OpInfo& info);

 private:
  void wake_all() noexcept;
  [[noreturn]] void raise(const Lane& lane, uint64_t number, core::OpInfo info);

  static constexpr uint64_t kFirstLoneId = 16;

  const int rank_;
  std::atomic<uint64_t> lone_groups_{0};
  bool gone_ = false;                                  ///< it has left
  const int exceptions_ = std::uncaught_exceptions();  ///< in flight when the world was made
  const std::vector<Member> members_;
  const WorldOptions options_;
  Transport transport_;
  MemoryPool pool_;
  FlightRecorder recorder_;
  core::Log log_;
  std::shared_ptr<core::Trace> trace_;         ///< under the engine's lock; or null
  std::unordered_map<uint64_t, Lane*> lanes_;  ///< under the engine's lock
  Messenger messenger_;
  Engine engine_;
};

}  // namespace trireme::comm
