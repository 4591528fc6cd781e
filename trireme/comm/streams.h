#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstdint>

namespace trireme::comm {

/// Thrown once when the stream of a rank has ended.
struct StreamClosed {
  int rank;
};

/// A byte stream to and from every other rank of a world, none of whose calls blocks.
/// shm and local pass the bytes through rings in shared memory, tcp through sockets; the messages
/// in the streams, and all that is built on them, are the same code.
class Streams {
 public:
  virtual ~Streams() = default;

  /// Writes as much of the parts as fits now. 0: full.
  virtual int64_t write_some(int peer, const iovec* parts, int num_parts) = 0;

  /// Reads what is there, up to `bytes`. 0: nothing.
  virtual int64_t read_some(int peer, void* data, int64_t bytes) = 0;

  /// Has everything been read that this peer, which has left, will ever have written?
  virtual bool ended(int peer) = 0;

  /// Is it worth calling read_some for this peer? May say yes wrongly, but not no.
  virtual bool readable(int peer) = 0;

  /// Finds out who has become readable or writable, where that takes a call. Once a step.
  virtual void look() {}

  /// Before this rank goes: returns when peers need it no longer to get what was written, or after
  /// `most`. What they still send meanwhile is read and thrown away.
  virtual void deliver(std::chrono::nanoseconds most) { (void)most; }
};

}  // namespace trireme::comm
