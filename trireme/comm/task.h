#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/pending_op.h"
#include "trireme/core/op_info.h"

namespace trireme::comm {

class Engine;
class Lane;

/// What a stuck task waits for: a channel of a group reaches a value. Only the rank that makes it
/// true has to wake the sleeper.
struct WakeCondition {
  uint64_t group = 0;  ///< 0: anything
  uint32_t channel = 0;
  uint64_t value = 0;
};

/// A started operation as a state machine. `step` never blocks; the engine calls it until it
/// returns Done.
class Task : public PendingOp {
 public:
  enum class Step : uint8_t { Done, Moved, Stuck };
  virtual Step step() = 0;

  virtual WakeCondition wake_condition() const { return {}; }

  /// The ranks (in the world) that it waits for. A timeout names them.
  virtual std::vector<int> missing() const = 0;

  /// Whether those ranks have really not started the operation. If they have, others hold them up,
  /// and some other rank may know whom to blame.
  virtual bool certain() const { return true; }

  bool done() const final { return done_.load(std::memory_order_acquire); }
  void wait(std::chrono::nanoseconds timeout) final;

  core::OpInfo info;
  uint64_t number = 0;
  std::chrono::steady_clock::time_point started;
  Engine* engine = nullptr;
  Lane* lane = nullptr;
  /// Large, or over sockets: without the helper nothing moves while the caller computes.
  bool may_need_helper = false;
  bool large = false;
  bool ordered = true;  ///< a collective, which queues in its lane; sends and receives do not
  uint64_t record = 0;  ///< its index in the flight recorder

 private:
  friend class Engine;
  std::atomic<bool> done_{false};  ///< finished, or failed
  // Under the engine's lock:
  bool failed_ = false;
  bool slept_on_ = false;  ///< a thread sleeps until the task ends and must be woken
};

}  // namespace trireme::comm
