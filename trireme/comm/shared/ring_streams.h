#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "trireme/comm/host_page.h"
#include "trireme/comm/streams.h"

namespace trireme::comm {

/// Streams through rings in shared memory, one for every ordered pair of ranks:
///
///   | head (writer's) | tail (reader's) | 256 KiB of bytes, used as a circle |
///
/// head and tail only grow; head - tail bytes are in the ring.
class RingStreams final : public Streams {
 public:
  /// Bytes that the rings of a world take. Pages that are never used cost nothing.
  static std::size_t bytes(int size);

  RingStreams(std::byte* memory, int rank, int size, std::vector<Seat*> seats);

  int64_t write_some(int peer, const iovec* parts, int num_parts) override;
  int64_t read_some(int peer, void* data, int64_t bytes) override;
  bool readable(int peer) override;
  bool ended(int peer) override { return !readable(peer); }

 private:
  struct Ring;
  Ring& between(int from, int to) const;

  std::byte* memory_;
  int rank_, size_;
  std::vector<Seat*> seats_;
};

}  // namespace trireme::comm
