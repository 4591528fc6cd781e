#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/comm/lane.h"
#include "trireme/comm/op.h"
#include "trireme/comm/segments.h"
#include "trireme/comm/world.h"

namespace trireme::comm {

/// What a rank shows when it arrives at collective `number`. Each rank has two, used in turn: a
/// rank can be one collective ahead of its slowest peer, never two.
struct alignas(128) Arrival {
  static constexpr std::size_t kInlineBytes = 88;

  std::atomic<uint64_t> number;
  uint64_t fingerprint;
  uint64_t segment;  ///< where its data lies: kStaged, kInSlot, or a segment that all have mapped
  uint64_t offset;
  uint64_t spare;
  std::byte inline_data[kInlineBytes];  ///< tiny data travels with the arrival itself
};

constexpr uint64_t kStaged = 0;  ///< in private memory: goes through the staging chunks
constexpr uint64_t kInSlot = 1;  ///< copied into the rank's slot (or inline) before it arrived

/// The counters that a rank raises and the others wait for.
enum Channel : uint32_t {
  kArrived,  ///< arrived at collective n
  kDone,     ///< finished with the memory of the others in collective n
  kIn,       ///< put chunk n into its staging
  kReduced,  ///< put its part of the result of chunk n into its staging
  kOut,      ///< took the result of chunk n
  kChannels
};

/// The shared memory of a group of ranks of one host, and how they signal in it.
///
///   | arrivals 2 x N | infos 2 x N | counters | slots 2 x N x 64 KiB |
///   | staging N x 4 x (N + 1) x 128 KiB |
class SharedGroup {
 public:
  static constexpr int64_t kSlotBytes = 64 << 10;
  static constexpr int64_t kChunkBytes = 128 << 10;
  static constexpr int kDepth = 4;  ///< chunks in flight

  static std::size_t bytes(int size);

  SharedGroup(World& world, const Lane& lane, Mapping mapping);

  int rank() const { return rank_; }
  int size() const { return size_; }

  bool all_at_least(Channel channel, uint64_t at) const {
    for (int rank = 0; rank < size_; ++rank) {
      if (value(channel, at, rank) < at) return false;
    }
    return true;
  }
  std::vector<int> below(Channel channel, uint64_t value) const;  ///< ranks of the world

  /// Raises this rank's counter, and wakes the ranks that waited for nothing else.
  void post(Channel channel, uint64_t value);

  /// Shows that this rank has arrived at a collective. Its data must be in place before.
  void arrive(uint64_t number, uint64_t fingerprint, const core::OpInfo& info,
              Segments::Location location);

  Arrival& arrival(uint64_t number, int rank) const {
    return arrivals_[(number & 1) * static_cast<uint64_t>(size_) + static_cast<uint64_t>(rank)];
  }
  const core::OpInfo& info(uint64_t number, int rank) const;
  std::byte* slot(uint64_t number, int rank) const;

  /// Part `part` of what `rank` staged for `chunk`: the input of rank `part`, or (part == size) its
  /// share of the result.
  std::byte* staging(int rank, uint64_t chunk, int part) const;

  /// Counts bytes that this rank has read from the memory of rank `owner` of the group.
  void took(int owner, int64_t bytes) {
    world_.took(lane_.members[static_cast<std::size_t>(owner)], bytes);
  }
  void took_from_all(int64_t bytes_each);

  World& world() const { return world_; }
  const Lane& lane() const { return lane_; }
  uint64_t chunks = 0;  ///< chunks that have gone through the staging so far

 private:
  /// One cache line per rank, which alone writes it; the others read it.
  struct alignas(128) Counters {
    std::atomic<uint64_t> values[kChannels];
  };
  uint64_t value(Channel channel, uint64_t at, int rank) const {
    // Arrivals alternate between two lines; the line for `at` has `at`, or two less.
    if (channel == kArrived) return arrival(at, rank).number.load(std::memory_order_acquire);
    return counters_[rank].values[channel].load(std::memory_order_acquire);
  }

  World& world_;
  const Lane& lane_;
  Mapping mapping_;
  int rank_, size_;
  Arrival* arrivals_;
  core::OpInfo* infos_;
  Counters* counters_;
  std::byte* slots_;
  std::byte* staging_;
  std::vector<Seat*> seats_;
};

}  // namespace trireme::comm
