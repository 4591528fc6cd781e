#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace trireme::comm {

/// What a world is told at its beginning; nothing below reads the environment.
struct WorldOptions {
  /// How long an operation may wait, unless its communicator says otherwise.
  std::chrono::nanoseconds timeout = std::chrono::seconds(300);
  /// Silence after which a process counts as hung.
  std::chrono::nanoseconds heartbeat = std::chrono::seconds(10);
  /// Where the records of recent operations go when the world fails; nothing: nowhere.
  std::optional<std::string> record_dir = {};
};

}  // namespace trireme::comm
