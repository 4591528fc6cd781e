#pragma once

#include <optional>
#include <vector>

#include "trireme/net/socket.h"

namespace trireme::launch {

/// How to end a job: a list of signals, each with the time to wait before it. After a failure: {300
/// ms, TERM}, {5 s, KILL}.
class StopPlan {
 public:
  struct TimedSignal {
    net::Clock::duration wait;
    int signal;
  };

  /// Replaces the plan.
  void plan(std::vector<TimedSignal> steps, net::Deadline now);

  /// When the next signal is due; nothing if no signal is left.
  std::optional<net::Deadline> due() const;

  /// The signal that is due by now, once; 0 if none is.
  int take(net::Deadline now);

 private:
  std::vector<TimedSignal> steps_;
  size_t step_ = 0;
  net::Deadline since_;
};

}  // namespace trireme::launch
