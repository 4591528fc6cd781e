#include "trireme/comm/shared/pull.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "trireme/comm/kernels.h"
#include "trireme/comm/shared/all_reduce.h"
#include "trireme/comm/shared/peer_memory_access.h"

namespace trireme::comm {

namespace {

using core::OpKind;

constexpr int64_t kPerStep = 512 << 10;       // then other tasks get their turn
constexpr int64_t kStreamingBytes = 1 << 20;  // larger copies would only evict the cache
constexpr int64_t kStreamingReduceBytes = 4 << 20;
constexpr int64_t kBlockBytes = 16 << 10;

Interval at(const std::vector<int64_t>& begins, int rank) {
  return {begins[static_cast<std::size_t>(rank)], begins[static_cast<std::size_t>(rank) + 1]};
}

}  // namespace

Interval PullCollective::shows() const {
  const bool is_root = group_.rank() == op_.info.root;
  switch (op_.info.kind) {
    case OpKind::Broadcast: return {0, is_root ? op_.bytes : 0};
    case OpKind::Reduce: return {0, op_.bytes};
    case OpKind::AllGather:
    case OpKind::Gather: return {0, at(op_.out_begin, group_.rank()).size()};
    case OpKind::Scatter: return {0, is_root ? op_.bytes : 0};
    case OpKind::ReduceScatter: return {0, op_.bytes};
    case OpKind::AllToAll: return {0, op_.in_begin.back()};
    default: return {};
  }
}

Segments::Location PullCollective::show() {
  const auto asked = op_.info.algorithm;
  if (asked == core::Algorithm::Ring || asked == core::Algorithm::Tree) return {kStaged, 0};
  if (op_.info.kind == OpKind::AllToAll) {
    // The others must know where their part begins, so the slot begins with the table.
    const auto table = static_cast<int64_t>(op_.in_begin.size() * sizeof(int64_t));
    std::byte* slot = group_.slot(number, group_.rank());
    if (table > SharedGroup::kSlotBytes) return {kStaged, 0};
    std::memcpy(slot, op_.in_begin.data(), static_cast<std::size_t>(table));
    if (table + shows().size() <= SharedGroup::kSlotBytes) {
      if (shows().size() > 0)
        std::memcpy(slot + table, op_.in, static_cast<std::size_t>(shows().size()));
      return {kInSlot, 0};
    }
    return locate(op_.in, shows().size());
  }
  if (shows().size() <= SharedGroup::kSlotBytes) return put_in_slot(op_.in, shows().size());
  return locate(op_.in, shows().size());
}

/// Both ends of an all_to_all choose how many rows go between them; they must agree.
bool PullCollective::shape_agrees(int from, int64_t there, int64_t here) {
  if (there == here) return true;
  mismatched_ = true;
  const auto& members = group_.lane().members;
  group_.world().fail(
      {CauseKind::Mismatch, -1,
       fmt::format("all_to_all: rank {} sends {} bytes to rank {}, which expects {}",
                   members[static_cast<std::size_t>(from)], there,
                   members[static_cast<std::size_t>(group_.rank())], here)});
  return false;
}

std::vector<PullCollective::Pull> PullCollective::pulls() {
  std::vector<Pull> list;
  const int me = group_.rank(), root = op_.info.root;
  const auto from_all = [&](auto range_of) {
    for (int i = 0; i < group_.size(); ++i) {
      const int from = (me + i) % group_.size();
      const Interval range = range_of(from);
      list.push_back({from, 0, op_.out + range.begin, range.size()});
    }
  };
  switch (op_.info.kind) {
    case OpKind::Broadcast:
      if (me != root) list.push_back({root, 0, op_.out, op_.bytes});
      break;
    case OpKind::Reduce:
      if (me == root) list.push_back({Pull::kAll, 0, op_.out, op_.bytes});
      break;
    case OpKind::AllGather: from_all([&](int from) { return at(op_.out_begin, from); }); break;
    case OpKind::Gather:
      if (me == root) from_all([&](int from) { return at(op_.out_begin, from); });
      break;
    case OpKind::Scatter: {
      const Interval range = at(op_.in_begin, me);
      list.push_back({root, range.begin, op_.out, range.size()});
      break;
    }
    case OpKind::ReduceScatter: {
      const Interval range = at(op_.in_begin, me);
      list.push_back({Pull::kAll, range.begin, op_.out, range.size()});
      break;
    }
    case OpKind::AllToAll: {
      const auto table_bytes = static_cast<int64_t>(op_.in_begin.size() * sizeof(int64_t));
      for (int i = 0; i < group_.size(); ++i) {
        const int from = (me + i) % group_.size();
        const auto* table = reinterpret_cast<const int64_t*>(group_.slot(number, from));
        const Interval here = at(op_.out_begin, from);
        if (!shape_agrees(from, table[me + 1] - table[me], here.size())) return {};
        const bool in_slot = group_.arrival(number, from).segment == kInSlot;
        list.push_back(
            {from, table[me] + (in_slot ? table_bytes : 0), op_.out + here.begin, here.size()});
      }
      break;
    }
    default: break;
  }
  std::erase_if(list, [](const Pull& pull) { return pull.bytes == 0; });
  return list;
}

/// Reduces [begin, begin + bytes) of what all ranks show. A large result goes past the caches,
/// through a block that stays in the nearest one: fetching memory that is about to be overwritten
/// would cost a third of the traffic.
void PullCollective::reduce_from_all(const Pull& pull, int64_t begin, int64_t bytes) {
  const int64_t item = op_.info.item_bytes, me = group_.rank();
  const bool streaming = pull.bytes >= kStreamingReduceBytes;
  alignas(64) std::array<std::byte, kBlockBytes> block;
  std::vector<const void*> from(static_cast<std::size_t>(group_.size()));
  for (int64_t done = 0; done < bytes;) {
    const int64_t part = streaming ? std::min(kBlockBytes, bytes - done) : bytes;
    for (int rank = 0; rank < group_.size(); ++rank)
      from[static_cast<std::size_t>(rank)] =
          (rank == me ? op_.in : shown(rank)) + pull.begin + begin + done;
    std::byte* place = pull.to + begin + done;
    void* to = streaming ? block.data() : place;
    kernels().reduce(op_.info.dtype, op_.info.reduce, &to, 1, from.data(), group_.size(),
                     part / item);
    if (streaming) kernels().copy_streaming(place, block.data(), part);
    done += part;
  }
  group_.took_from_all(bytes);
}

void PullCollective::take(const Pull& pull, int64_t begin, int64_t bytes) {
  const int me = group_.rank();
  if (pull.from == Pull::kAll) return reduce_from_all(pull, begin, bytes);
  const bool own_table = op_.info.kind == OpKind::AllToAll && pull.from == me;
  const std::byte* from = (pull.from == me ? op_.in : shown(pull.from)) + pull.begin + begin;
  if (own_table) from = op_.in + at(op_.in_begin, me).begin + begin;
  if (from == pull.to + begin) return;
  const bool streaming = pull.bytes >= kStreamingBytes;
  (streaming ? kernels().copy_streaming : kernels().copy)(pull.to + begin, from, bytes);
  if (pull.from != me) group_.took(pull.from, bytes);
}

/// Takes up to `most` bytes of the next pull, in whole elements. Returns how many.
int64_t PullCollective::take_some(int64_t most) {
  const Pull& pull = pulls_[next_];
  int64_t bytes = std::min(most, pull.bytes - at_);
  if (bytes < pull.bytes - at_) bytes -= bytes % std::max<int64_t>(1, op_.info.item_bytes);
  if (bytes > 0) take(pull, at_, bytes);
  at_ += bytes;
  if (at_ == pull.bytes) {
    at_ = 0;
    ++next_;
  }
  return bytes;
}

Task::Step PullCollective::run() {
  if (method_ == Method::Unknown) {
    if (any_staged()) return run_program();
    method_ = all_in_slots() ? Method::Slots : Method::Mapped;
    pulls_ = pulls();
    group_.world().messenger().traffic.saw_step(1);
  }
  if (mismatched_) return Step::Stuck;  // it has failed the world
  if (method_ == Method::Slots) {
    while (next_ < pulls_.size()) take_some(kPerStep);
    return Step::Done;
  }
  if (next_ < pulls_.size()) {
    const PeerMemoryAccess access(group_.world());
    if (!access) return Step::Stuck;
    for (int64_t budget = kPerStep; next_ < pulls_.size() && budget > 0;) {
      const int64_t taken = take_some(budget);
      if (taken == 0) break;
      budget -= taken;
    }
    if (next_ < pulls_.size()) return Step::Moved;
  }
  if (!posted_) {
    posted_ = true;
    group_.post(kDone, number);
  }
  // A rank that showed its own memory stays until nobody reads it any more.
  const bool shown_mapped = group_.arrival(number, group_.rank()).segment > kInSlot;
  if (shown_mapped && !group_.all_at_least(kDone, number)) return wait_for(kDone, number);
  return Step::Done;
}

std::shared_ptr<Task> make_shared_collective(SharedGroup& group, LoweredOp op, uint64_t number,
                                             uint64_t fingerprint) {
  if (op.info.kind == OpKind::AllReduce)
    return std::make_shared<SharedAllReduce>(group, std::move(op), number, fingerprint);
  return std::make_shared<PullCollective>(group, std::move(op), number, fingerprint);
}

}  // namespace trireme::comm
