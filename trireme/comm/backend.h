#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "trireme/comm/op.h"
#include "trireme/comm/pending.h"
#include "trireme/comm/traffic.h"
#include "trireme/core/op_info.h"
#include "trireme/core/trace.h"

namespace trireme::comm {

/// What a transport must provide: a handful of functions. Argument checks, numbering and timeouts
/// live in Communicator, once.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts an operation that has been checked. `number` counts the collectives of this group, or
  /// its sends and receives. Never blocks for a peer.
  virtual std::shared_ptr<Pending> start(const Op& op, const core::OpInfo& info,
                                         uint64_t number) = 0;

  /// Collective. Ranks with the same color form a group, ordered by key. `number` is that of the
  /// last collective, and counts on for those that this takes.
  virtual std::shared_ptr<Backend> split(const std::string& name, int color, int key,
                                         uint64_t& number) = 0;

  /// A group of this rank alone. Not collective: nobody else need know.
  virtual std::shared_ptr<Backend> alone(const std::string& name) = 0;

  /// Collective. `bytes` of zeroed memory for this rank that its peers can reach, or nothing where
  /// this transport has no such thing. Freed with the last copy of the pointer.
  virtual std::shared_ptr<std::byte> allocate(int64_t bytes, uint64_t& number) = 0;

  /// Moves whatever can be moved now, for programs that would rather not leave it to a thread.
  virtual void step() = 0;

  /// Ends the world on this rank, so that all ranks learn why.
  virtual void abort(const std::string& why) noexcept = 0;

  /// The same for a rank that ends by an exception of its own.
  virtual void abandon() noexcept = 0;

  /// Throws if the world has failed, in the name of this operation.
  virtual void check(const core::OpInfo& info, uint64_t number) = 0;

  /// How long an operation of this group may wait; groups that are split off it inherit that.
  virtual std::chrono::nanoseconds timeout() const = 0;
  virtual void set_timeout(std::chrono::nanoseconds timeout) = 0;

  virtual Traffic traffic() const = 0;

  /// What this rank does, for the message of those who survive it.
  virtual void note(std::string_view doing) = 0;

  /// From now on every operation of this rank's world that ends is added.
  virtual void set_trace(std::shared_ptr<core::Trace> trace) = 0;

  /// What carries the data: "shm", "tcp" ...
  virtual std::string kind() const = 0;
};

}  // namespace trireme::comm
