#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace trireme::format {

/// Which pairs of tokens become one, and in which order: pair -> rank and result, in an
/// open-addressing table. Of equal pairs, the one that is added last counts.
class MergeTable {
 public:
  static constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

  struct Merge {
    uint32_t rank = kNever;
    int32_t result = -1;
  };

  explicit MergeTable(size_t most);
  void add(int32_t left, int32_t right, Merge merge);

  /// rank is kNever for a pair that does not merge.
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t at = place_of(key);; at = (at + 1) & mask_) {
      if (slots_[at].key == key) return slots_[at].merge;
      if (slots_[at].key == kFree) return {};
    }
  }

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  static constexpr uint64_t kFree = std::numeric_limits<uint64_t>::max();

  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t place_of(uint64_t key) const { return key * 0x9E3779B97F4A7C15u >> shift_; }

  std::vector<Slot> slots_;
  size_t mask_;
  int shift_;
};

/// Merges neighbours in `tokens`, always the pair of the lowest rank, the leftmost of several;
/// returns how many tokens are left, at the front. Memory and time grow as n log n.
class Merger {
 public:
  size_t merge(const MergeTable& merges, std::span<int32_t> tokens);

 private:
  size_t merge_short(const MergeTable& merges, std::span<int32_t> tokens);
  size_t merge_long(const MergeTable& merges, std::span<int32_t> tokens);

  /// A pair that may be merged when its turn comes, if it is still the same.
  struct Candidate {
    uint32_t rank, at;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  struct Link {
    uint32_t before, after;
    MergeTable::Merge next;  ///< of this token and the one after it
  };
  std::vector<Candidate> heap_;
  std::vector<Link> links_;
};

}  // namespace trireme::format
