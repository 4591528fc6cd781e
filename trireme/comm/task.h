#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/pending.h"
#include "trireme/core/op_info.h"

namespace trireme::comm {

class Engine;
class Lane;

/// What a task that cannot go on waits for, so that only the rank that makes it true need wake it.
struct Hint {
  uint64_t group = 0;  ///< 0: anything
  uint32_t channel = 0;
  uint64_t value = 0;
};

/// A started operation as a state machine. `step` never blocks; whoever drives the engine calls it
/// again and again, until it says that it is done.
class Task : public Pending {
 public:
  enum class Step : uint8_t { Done, Moved, Stuck };
  virtual Step step() = 0;

  /// What it waits for while it is stuck.
  virtual Hint hint() const { return {}; }

  /// The ranks (in the world) without which it cannot go on, for the message of a timeout.
  virtual std::vector<int> missing() const = 0;

  /// Whether those have really not come. Otherwise they have, and are held up by others, who may be
  /// named by somebody that knows better.
  virtual bool certain() const { return true; }

  bool done() const final { return done_.load(std::memory_order_acquire); }
  void wait(std::chrono::nanoseconds timeout) final;

  core::OpInfo info;
  uint64_t number = 0;
  std::chrono::steady_clock::time_point started;
  Engine* engine = nullptr;
  Lane* lane = nullptr;
  /// Large, or over sockets: nobody else moves it while its caller computes.
  bool may_need_helper = false;
  bool large = false;
  bool ordered = true;  ///< a collective; sends and receives wait for nobody's turn
  uint64_t record = 0;  ///< its place in the recorder

 private:
  friend class Engine;
  std::atomic<bool> done_{false};  ///< finished, or failed
  // Under the engine's turn:
  bool failed_ = false;
  bool slept_on_ = false;  ///< the thread that waits for it sleeps, and must be woken at its end
};

}  // namespace trireme::comm
