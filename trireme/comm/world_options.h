#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace trireme::comm {

/// The options of a world. Nothing below reads the environment.
struct WorldOptions {
  /// How long an operation may wait, unless its communicator says otherwise.
  std::chrono::nanoseconds timeout = std::chrono::seconds(300);
  /// How long a process may be silent before it counts as hung.
  std::chrono::nanoseconds heartbeat = std::chrono::seconds(10);
  /// tcp: the most Mbit/s (10^6 bits) that a connection carries in each direction; 0: no limit.
  double rate_mbit = 0;
  /// The folder for the flight records when the world fails; none: they are not written.
  std::optional<std::string> record_dir = {};
};

}  // namespace trireme::comm
