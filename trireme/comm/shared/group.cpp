#include "trireme/comm/shared/group.h"

#include <algorithm>
#include <cstring>

namespace trireme::comm {

namespace {

constexpr std::size_t kPage = 4096;

std::size_t round_up_to(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

constexpr std::size_t kInfoBytes = 256;  // of OpInfo, rounded up to lines
static_assert(sizeof(core::OpInfo) <= kInfoBytes);

}  // namespace

std::size_t SharedGroup::bytes(int size) {
  const auto n = static_cast<std::size_t>(size);
  return round_up_to(2 * n * (sizeof(Arrival) + kInfoBytes) + n * sizeof(Counters), kPage) +
         2 * n * kSlotBytes + n * kDepth * (n + 1) * kChunkBytes;
}

SharedGroup::SharedGroup(World& world, const Lane& lane, Mapping mapping)
    : world_(world),
      lane_(lane),
      mapping_(std::move(mapping)),
      rank_(lane.rank),
      size_(lane.size()) {
  const auto n = static_cast<std::size_t>(size_);
  std::byte* at = mapping_.base;
  arrivals_ = reinterpret_cast<Arrival*>(at);
  at += 2 * n * sizeof(Arrival);
  infos_ = reinterpret_cast<core::OpInfo*>(at);
  at += 2 * n * kInfoBytes;
  counters_ = reinterpret_cast<Counters*>(at);
  slots_ = mapping_.base +
           round_up_to(2 * n * (sizeof(Arrival) + kInfoBytes) + n * sizeof(Counters), kPage);
  staging_ = slots_ + 2 * n * kSlotBytes;
  for (int member : lane.members) seats_.push_back(&world.seat(member));
}

const core::OpInfo& SharedGroup::info(uint64_t number, int rank) const {
  const auto index = (number & 1) * static_cast<uint64_t>(size_) + static_cast<uint64_t>(rank);
  return *reinterpret_cast<core::OpInfo*>(reinterpret_cast<std::byte*>(infos_) +
                                          index * kInfoBytes);
}

std::byte* SharedGroup::slot(uint64_t number, int rank) const {
  return slots_ +
         ((number & 1) * static_cast<uint64_t>(size_) + static_cast<uint64_t>(rank)) * kSlotBytes;
}

std::byte* SharedGroup::staging(int rank, uint64_t chunk, int part) const {
  const int64_t index = (rank * kDepth + static_cast<int64_t>(chunk % kDepth)) * (size_ + 1) + part;
  return staging_ + index * kChunkBytes;
}

std::vector<int> SharedGroup::below(Channel channel, uint64_t at) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (value(channel, at, rank) < at)
      ranks.push_back(lane_.members[static_cast<std::size_t>(rank)]);
  }
  return ranks;
}

void SharedGroup::post(Channel channel, uint64_t at) {
  if (channel == kArrived)
    arrival(at, rank_).number.store(at, std::memory_order_release);
  else
    counters_[rank_].values[channel].store(at, std::memory_order_release);
  // A sleeper sets its bell, fences, and looks again. This thread stores, fences, and looks at the
  // bell. So at least one of the two sees the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int rank = 0; rank < size_; ++rank) {
    Seat& seat = *seats_[static_cast<std::size_t>(rank)];
    if (rank == rank_ || seat.bell.load(std::memory_order_acquire) == 0) continue;
    const uint64_t wants = seat.wants_group.load(std::memory_order_relaxed);
    if (wants != 0) {
      if (wants != lane_.id) continue;
      const auto on = static_cast<Channel>(seat.wants_channel.load(std::memory_order_relaxed));
      if (on != channel || !all_at_least(on, seat.wants_value.load(std::memory_order_relaxed)))
        continue;
    }
    if (seat.bell.exchange(0) != 0) futex_wake_all(seat.bell);
  }
}

void SharedGroup::took_from_all(int64_t bytes_each) {
  for (int owner = 0; owner < size_; ++owner) {
    if (owner != rank_) took(owner, bytes_each);
  }
}

void SharedGroup::arrive(uint64_t number, uint64_t fingerprint, const core::OpInfo& info,
                         Segments::Location location) {
  Arrival& mine = arrival(number, rank_);
  mine.fingerprint = fingerprint;
  mine.segment = location.segment;
  mine.offset = location.offset;
  const_cast<core::OpInfo&>(this->info(number, rank_)) = info;
  post(kArrived, number);
}

}  // namespace trireme::comm
