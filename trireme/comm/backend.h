#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "trireme/comm/op.h"
#include "trireme/comm/pending_op.h"
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

  /// Whether it can start operations on tensors of this device. Others go through host memory.
  virtual bool takes(at::Device device) const = 0;

  /// Starts an operation that has been checked. `number` is its number among the collectives of
  /// this group, or among its sends and receives. Never waits for a peer.
  virtual std::shared_ptr<PendingOp> start(const Op& op, const core::OpInfo& info,
                                           uint64_t number) = 0;

  /// Runs `launch`, which puts a CUDA graph with ops of this world on the current stream, as one
  /// collective of this group. A backend whose ops cannot go into a graph just runs it.
  virtual std::shared_ptr<PendingOp> replay(const std::function<void()>& launch,
                                            const core::OpInfo&, uint64_t /*number*/) {
    launch();
    return nullptr;
  }

  /// Collective. Ranks with the same color form a group, ordered by key. `number` is the number of
  /// the last collective; each collective that this call runs raises it by one.
  virtual std::shared_ptr<Backend> split(const std::string& name, int color, int key,
                                         uint64_t& number) = 0;

  /// A group of this rank alone. Not collective: no other rank takes part.
  virtual std::shared_ptr<Backend> alone(const std::string& name) = 0;

  /// Collective. Returns `bytes` of memory on `device` that the peers of this rank can reach, or
  /// null if the transport has no such memory. Host memory is zeroed. The last copy of the pointer
  /// frees it.
  virtual std::shared_ptr<std::byte> allocate(int64_t bytes, at::Device device,
                                              uint64_t& number) = 0;

  /// Moves whatever can be moved now, for callers that do not want to leave it to a thread.
  virtual void step() = 0;

  /// Fails the world, so that all ranks learn why.
  virtual void abort(const std::string& why) noexcept = 0;

  /// The same for a rank that ends because of its own exception.
  virtual void abandon() noexcept = 0;

  /// Throws if the world has failed; the error names this operation.
  virtual void check(const core::OpInfo& info, uint64_t number) = 0;

  /// How long an operation of this group may wait. Groups that are split off inherit it.
  virtual std::chrono::nanoseconds timeout() const = 0;
  virtual void set_timeout(std::chrono::nanoseconds timeout) = 0;

  virtual Traffic traffic() const = 0;

  /// Says what this rank does, for the errors of the ranks that survive it.
  virtual void note(std::string_view doing) = 0;

  /// From now on every operation of this rank's world is added to the trace when it ends.
  virtual void set_trace(std::shared_ptr<core::Trace> trace) = 0;

  /// What carries the data: "shm", "tcp", "nccl" ...
  virtual std::string kind() const = 0;
};

}  // namespace trireme::comm
