#include "trireme/comm/shared/ring_streams.h"

#include <algorithm>
#include <cstring>

namespace trireme::comm {

struct RingStreams::Ring {
  static constexpr uint64_t kBytes = 256 << 10;
  alignas(128) std::atomic<uint64_t> head;
  alignas(128) std::atomic<uint64_t> tail;
  alignas(128) std::byte data[kBytes];
};

std::size_t RingStreams::bytes(int size) {
  return sizeof(Ring) * static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
}

RingStreams::RingStreams(std::byte* memory, int rank, int size, std::vector<Seat*> seats)
    : memory_(memory), rank_(rank), size_(size), seats_(std::move(seats)) {}

RingStreams::Ring& RingStreams::between(int from, int to) const {
  return reinterpret_cast<Ring*>(memory_)[from * size_ + to];
}

int64_t RingStreams::write_some(int peer, const iovec* parts, int num_parts) {
  Ring& ring_to = between(rank_, peer);
  uint64_t head = ring_to.head.load(std::memory_order_relaxed);
  int64_t total = 0;
  for (int i = 0; i < num_parts; ++i) {
    const auto* from = static_cast<const std::byte*>(parts[i].iov_base);
    uint64_t left = parts[i].iov_len;
    while (left > 0) {
      const uint64_t room = Ring::kBytes - (head - ring_to.tail.load(std::memory_order_acquire));
      const uint64_t at = head % Ring::kBytes;
      const uint64_t now = std::min({left, room, Ring::kBytes - at, uint64_t{64 << 10}});
      if (now == 0) break;
      std::memcpy(ring_to.data + at, from, now);
      head += now;
      from += now;
      left -= now;
      total += static_cast<int64_t>(now);
      // Publish large data piece by piece, so that the reader copies out while this rank copies in.
      if (left > 0) ring_to.head.store(head, std::memory_order_release);
    }
    if (left > 0) break;
  }
  if (total > 0) {
    ring_to.head.store(head, std::memory_order_release);
    ring(*seats_[static_cast<std::size_t>(peer)]);
  }
  return total;
}

int64_t RingStreams::read_some(int peer, void* data, int64_t bytes) {
  Ring& ring_from = between(peer, rank_);
  const uint64_t tail = ring_from.tail.load(std::memory_order_relaxed);
  const uint64_t there = ring_from.head.load(std::memory_order_acquire) - tail;
  const uint64_t at = tail % Ring::kBytes;
  const uint64_t now = std::min({static_cast<uint64_t>(bytes), there, Ring::kBytes - at});
  if (now == 0) return 0;
  std::memcpy(data, ring_from.data + at, now);
  ring_from.tail.store(tail + now, std::memory_order_release);
  // A writer that found the ring full waits for this.
  ring(*seats_[static_cast<std::size_t>(peer)]);
  return static_cast<int64_t>(now);
}

bool RingStreams::readable(int peer) {
  Ring& ring_from = between(peer, rank_);
  return ring_from.head.load(std::memory_order_acquire) !=
         ring_from.tail.load(std::memory_order_relaxed);
}

}  // namespace trireme::comm
