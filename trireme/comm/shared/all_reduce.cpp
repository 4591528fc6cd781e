#include "trireme/comm/shared/all_reduce.h"

#include <algorithm>
#include <array>
#include <vector>

#include "trireme/comm/kernels.h"
#include "trireme/comm/shared/peer_memory_access.h"

namespace trireme::comm {

namespace {

using core::Algorithm;

/// Up to this size it is faster that every rank reduces everything than that the ranks wait twice.
/// (More ranks have more to read; but with more ranks than cores every wait costs a context
/// switch.)
int64_t one_shot_bytes(int size) {
  return size == 2 ? 16 << 10 : 32 << 10;
}

/// From this size on, if all ranks have mapped the memory, a second wait is cheaper than a copy.
int64_t in_place_bytes(int size) {
  return size == 2 ? 2 << 10 : 16 << 10;
}

constexpr int64_t kInPlaceStep = 256 << 10;  // then other tasks get their turn
constexpr int kFewRanks = 16;

/// Pointers to one part of every rank's data, without an allocation for few ranks.
template <class Pointer>
class Pointers {
 public:
  explicit Pointers(int size) {
    if (size > kFewRanks) many_.resize(static_cast<std::size_t>(size));
  }
  Pointer* data() { return many_.empty() ? few_.data() : many_.data(); }
  Pointer& operator[](int i) { return data()[i]; }

 private:
  std::array<Pointer, kFewRanks> few_;
  std::vector<Pointer> many_;
};

}  // namespace

Segments::Location SharedAllReduce::show() {
  const Algorithm asked = op_.info.algorithm;
  if (asked == Algorithm::Ring || asked == Algorithm::Tree) return {kStaged, 0};
  const bool fits = asked == Algorithm::OneShot
                        ? op_.bytes <= SharedGroup::kSlotBytes
                        : asked == Algorithm::Auto && op_.bytes <= one_shot_bytes(group_.size());
  if (fits && op_.bytes < in_place_bytes(group_.size())) return put_in_slot(op_.in, op_.bytes);
  if (asked != Algorithm::OneShot) {
    const auto location = locate(op_.in, op_.bytes);
    if (location.segment != kStaged) return location;
  }
  if (fits) return put_in_slot(op_.in, op_.bytes);
  return {kStaged, 0};
}

Task::Step SharedAllReduce::run() {
  if (method_ == Method::Unknown) {
    const Algorithm asked = op_.info.algorithm;
    const bool by_program = asked == Algorithm::Ring || asked == Algorithm::Tree;
    if (all_in_slots()) {
      method_ = Method::OneShot;
    } else if (by_program || (asked == Algorithm::OneShot)) {
      return run_program();
    } else {
      bool all_mapped = true;
      for (int rank = 0; rank < group_.size(); ++rank)
        all_mapped &= group_.arrival(number, rank).segment > kInSlot;
      method_ = all_mapped ? Method::InPlace : Method::Staged;
    }
    if (method_ == Method::Staged) {
      const int64_t item = op_.info.item_bytes;
      const int64_t even = slice(op_.bytes / item, group_.size(), 0).size() * item;
      chunk_bytes_ = std::clamp<int64_t>(even, item, SharedGroup::kChunkBytes);
      const int64_t per_chunk = chunk_bytes_ * group_.size();
      count_ = static_cast<uint64_t>((op_.bytes + per_chunk - 1) / per_chunk);
      first_ = group_.chunks;
      group_.chunks += count_;
    }
  }
  switch (method_) {
    case Method::OneShot: return one_shot();
    case Method::InPlace: return in_place();
    default: return staged();
  }
}

Task::Step SharedAllReduce::one_shot() {
  const int size = group_.size();
  Pointers<const void*> from(size);
  for (int rank = 0; rank < size; ++rank) from[rank] = rank == group_.rank() ? op_.in : shown(rank);
  void* to = op_.out;
  kernels().reduce(op_.info.dtype, op_.info.reduce, &to, 1, from.data(), size,
                   op_.bytes / op_.info.item_bytes);
  group_.took_from_all(op_.bytes);
  group_.world().messenger().traffic.saw_step(1);
  return Step::Done;
}

Task::Step SharedAllReduce::in_place() {
  const int size = group_.size();
  if (!reduced_) {
    const PeerMemoryAccess access(group_.world());
    if (!access) return Step::Stuck;
    const int64_t item = op_.info.item_bytes;
    const Interval mine = slice(op_.bytes / item, size, group_.rank());
    const int64_t begin = mine.begin * item + at_;
    const int64_t bytes = std::min(kInPlaceStep, mine.end * item - begin);
    Pointers<const void*> from(size);
    Pointers<void*> to(size);
    for (int rank = 0; rank < size; ++rank) {
      // In place: every rank's slice is both a source and a destination.
      std::byte* data = rank == group_.rank() ? op_.in : const_cast<std::byte*>(shown(rank));
      from[rank] = data + begin;
      to[rank] = data + begin;
    }
    if (bytes > 0)
      kernels().reduce(op_.info.dtype, op_.info.reduce, to.data(), size, from.data(), size,
                       bytes / item);
    at_ += std::max<int64_t>(bytes, 0);
    if (mine.begin * item + at_ < mine.end * item) return Step::Moved;
    Traffic& traffic = group_.world().messenger().traffic;
    group_.took_from_all(mine.size() * item);
    traffic.sent_bytes += (size - 1) * mine.size() * item;  // written into the others' memory
    traffic.saw_step(2);
    reduced_ = true;
    group_.post(kDone, number);
  }
  if (!group_.all_at_least(kDone, number)) return wait_for(kDone, number);
  return Step::Done;
}

Interval SharedAllReduce::part(uint64_t chunk, int of) const {
  const int64_t begin = (static_cast<int64_t>(chunk) * group_.size() + of) * chunk_bytes_;
  return {std::min(begin, op_.bytes), std::min(begin + chunk_bytes_, op_.bytes)};
}

Task::Step SharedAllReduce::staged() {
  bool moved = stage_in();
  moved |= stage_reduce();
  moved |= stage_out();
  if (out_ == count_) {
    group_.world().messenger().traffic.saw_step(2);
    return Step::Done;
  }
  if (moved) return Step::Moved;
  // Names the first thing that it waits for; other progress is not worth a wake-up.
  if (out_ < reduce_) return wait_for(kReduced, first_ + out_ + 1);
  if (reduce_ < in_) return wait_for(kIn, first_ + reduce_ + 1);
  return wait_for(kOut, first_ + in_ + 1 - SharedGroup::kDepth);
}

bool SharedAllReduce::stage_in() {
  // Two chunks ahead of the last result are enough to keep all ranks busy.
  if (in_ == count_ || in_ > out_ + 2) return false;
  const uint64_t chunk = first_ + in_;
  if (chunk >= SharedGroup::kDepth && !group_.all_at_least(kOut, chunk + 1 - SharedGroup::kDepth))
    return false;
  for (int i = 1; i < group_.size(); ++i) {
    const int peer = (group_.rank() + i) % group_.size();
    const Interval range = part(in_, peer);
    if (range.size() > 0)
      kernels().copy(group_.staging(group_.rank(), chunk, peer), op_.in + range.begin,
                     range.size());
  }
  ++in_;
  group_.post(kIn, chunk + 1);
  return true;
}

bool SharedAllReduce::stage_reduce() {
  if (reduce_ == in_) return false;
  const uint64_t chunk = first_ + reduce_;
  if (!group_.all_at_least(kIn, chunk + 1)) return false;
  const int size = group_.size();
  const Interval range = part(reduce_, group_.rank());
  if (range.size() > 0) {
    Pointers<const void*> from(size);
    for (int rank = 0; rank < size; ++rank)
      from[rank] =
          rank == group_.rank() ? op_.in + range.begin : group_.staging(rank, chunk, group_.rank());
    void* to[2] = {op_.out + range.begin, group_.staging(group_.rank(), chunk, size)};
    kernels().reduce(op_.info.dtype, op_.info.reduce, to, 2, from.data(), size,
                     range.size() / op_.info.item_bytes);
  }
  group_.took_from_all(range.size());
  ++reduce_;
  group_.post(kReduced, chunk + 1);
  return true;
}

bool SharedAllReduce::stage_out() {
  if (out_ == reduce_) return false;
  const uint64_t chunk = first_ + out_;
  if (!group_.all_at_least(kReduced, chunk + 1)) return false;
  for (int i = 1; i < group_.size(); ++i) {
    const int peer = (group_.rank() + i) % group_.size();
    const Interval range = part(out_, peer);
    if (range.size() > 0)
      kernels().copy(op_.out + range.begin, group_.staging(peer, chunk, group_.size()),
                     range.size());
    group_.took(peer, range.size());
  }
  ++out_;
  group_.post(kOut, chunk + 1);
  return true;
}

}  // namespace trireme::comm
