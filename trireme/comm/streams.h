#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstdint>

namespace trireme::comm {

/// Thrown once, when the stream of a rank has ended.
struct StreamClosed {
  int rank;
};

/// Byte streams to and from every other rank of a world. No call blocks. shm and local pass the
/// bytes through rings in shared memory, tcp through sockets; the messages in the streams, and
/// everything built on them, are the same code.
class Streams {
 public:
  virtual ~Streams() = default;

  /// Writes as much of the parts as fits now. 0: full.
  virtual int64_t write_some(int peer, const iovec* parts, int num_parts) = 0;

  /// Reads what is there, up to `bytes`. 0: nothing.
  virtual int64_t read_some(int peer, void* data, int64_t bytes) = 0;

  /// Whether everything that this peer, which has left, had written has been read.
  virtual bool ended(int peer) = 0;

  /// Whether read_some may find something for this peer. A wrong yes is allowed, a wrong no is not.
  virtual bool readable(int peer) = 0;

  /// Finds out which peers have become readable or writable. Called once per step.
  virtual void look() {}

  /// Called before this rank leaves: waits until the peers' kernels have what it wrote, but at most
  /// for `most`. Discards what they still send.
  virtual void deliver(std::chrono::nanoseconds most) { (void)most; }
};

}  // namespace trireme::comm
