#include "trireme/format/bpe/merges.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

namespace trireme::format {

MergeTable::MergeTable(size_t most)
    : slots_(std::bit_ceil(2 * most + 2), Slot{kFree, {}}),
      mask_(slots_.size() - 1),
      shift_(64 - std::countr_zero(slots_.size())) {}

void MergeTable::add(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t at = place_of(key);
  while (slots_[at].key != kFree && slots_[at].key != key) at = (at + 1) & mask_;
  slots_[at] = {key, merge};
}

namespace {
constexpr size_t kShort = 48;  // longer pieces are rare; a heap is worth its cost there
}

size_t Merger::merge(const MergeTable& merges, std::span<int32_t> tokens) {
  if (tokens.size() < 2) return tokens.size();
  return tokens.size() <= kShort ? merge_short(merges, tokens) : merge_long(merges, tokens);
}

// next[i] is the merge of tokens i and i + 1. The lowest rank is searched from the left each time,
// and what is behind it moves up by one:
//
//   tokens  l  o  w  e  r        l  o  w  er          low er
//   rank      7  5  9  2     ->    7  5  9     -> ->    -
size_t Merger::merge_short(const MergeTable& merges, std::span<int32_t> tokens) {
  std::array<uint32_t, kShort> ranks;
  std::array<int32_t, kShort> results;
  size_t count = tokens.size();
  const auto look = [&](size_t i) {
    const MergeTable::Merge found = merges.find(tokens[i], tokens[i + 1]);
    ranks[i] = found.rank;
    results[i] = found.result;
  };
  for (size_t i = 0; i + 1 < count; ++i) look(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == MergeTable::kNever) break;
    tokens[best] = results[best];
    --count;
    for (size_t i = best + 1; i < count; ++i) tokens[i] = tokens[i + 1];
    for (size_t i = best + 1; i + 1 < count; ++i) {
      ranks[i] = ranks[i + 1];
      results[i] = results[i + 1];
    }
    if (best > 0) look(best - 1);
    if (best + 1 < count) look(best);
  }
  return count;
}

// The same with a heap of (rank, place) and links between the tokens that are left. A candidate
// whose pair has changed since is passed over: its rank is no longer that of the place.
size_t Merger::merge_long(const MergeTable& merges, std::span<int32_t> tokens) {
  const auto count = static_cast<uint32_t>(tokens.size());
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  links_.resize(count);
  heap_.clear();
  const auto push = [&](uint32_t at) {
    heap_.push_back({links_[at].next.rank, at});
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  };
  const auto look = [&](uint32_t at) {
    Link& link = links_[at];
    link.next =
        link.after == kNone ? MergeTable::Merge{} : merges.find(tokens[at], tokens[link.after]);
    if (link.next.rank != MergeTable::kNever) push(at);
  };
  for (uint32_t i = 0; i < count; ++i) links_[i] = {i - 1, i + 1 < count ? i + 1 : kNone, {}};
  for (uint32_t i = 0; i < count; ++i) look(i);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto [rank, at] = heap_.back();
    heap_.pop_back();
    Link& link = links_[at];
    if (link.next.rank != rank) continue;
    tokens[at] = link.next.result;
    const uint32_t gone = link.after;
    link.after = links_[gone].after;
    links_[gone].next = {};
    if (link.after != kNone) links_[link.after].before = at;
    look(at);
    if (at != 0) look(link.before);
  }
  size_t left = 0;
  for (uint32_t at = 0; at != kNone; at = links_[at].after) tokens[left++] = tokens[at];
  return left;
}

}  // namespace trireme::format
