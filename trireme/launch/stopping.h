#pragma once

#include <optional>
#include <vector>

#include "trireme/net/socket.h"

namespace trireme::launch {

/// How a job that has to end is made to: a list of signals, each with the time that the ranks are
/// given before it. A failure is {300 ms, TERM}, {5 s, KILL}.
class Stopping {
 public:
  struct Step {
    net::Clock::duration wait;
    int signal;
  };

  /// Replaces what was planned.
  void plan(std::vector<Step> steps, net::Deadline now);

  /// When the next signal is due; nothing if none is planned.
  std::optional<net::Deadline> due() const;

  /// The signal that is due by now, and 0 if none is. Each is given once.
  int take(net::Deadline now);

 private:
  std::vector<Step> steps_;
  size_t step_ = 0;
  net::Deadline since_;
};

}  // namespace trireme::launch
