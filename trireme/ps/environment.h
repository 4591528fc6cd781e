#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "trireme/ps/ids.h"

namespace trireme::ps {

/// All that a node can do to the world. Manager, servers and workers have no threads, clocks,
/// sockets or files of their own: they are told of messages and of time, and act through this. So
/// the same code runs in processes and in a simulator that decides what happens when.
///
///        receive(bytes)  tick()
///             |            |
///             v            v
///        +--------------------+   send    now   random
///        |        node        | ------------------------>  Environment
///        +--------------------+   append  sync  save  load
class Environment {
 public:
  virtual ~Environment() = default;

  virtual Time now() = 0;
  virtual uint64_t random() = 0;

  /// Sends a message that may be delayed, lost, repeated, or overtaken by later ones.
  virtual void send(NodeId to, std::string message) = 0;

  /// The log of this node, which survives its death up to the last sync(); of what was appended
  /// later any part may survive.
  virtual void append(std::string_view record) = 0;
  virtual void sync() = 0;
  virtual std::string read_log() = 0;
  /// Cuts off a torn end, before more is appended.
  virtual void truncate_log(size_t bytes) = 0;

  /// Files that all nodes see. Saving is atomic, and durable when the call returns.
  virtual void save(const std::string& name, std::string bytes) = 0;
  virtual std::optional<std::string> load(const std::string& name) = 0;

  /// A line for people.
  virtual void note(const std::string& line) = 0;
};

}  // namespace trireme::ps
