#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace trireme::ps {

/// A set of numbers, kept as the runs that they make up: the ids of a million batches that were
/// applied in about their order are a few runs.
class IntervalSet {
 public:
  bool contains(uint64_t number) const {
    const auto after = runs_.upper_bound(number);
    return after != runs_.begin() && number < std::prev(after)->second;
  }

  /// Returns whether the number is new.
  bool insert(uint64_t number) {
    if (contains(number)) return false;
    auto after = runs_.upper_bound(number);
    const bool joins_next = after != runs_.end() && after->first == number + 1;
    const bool joins_last = after != runs_.begin() && std::prev(after)->second == number;
    const uint64_t end = joins_next ? after->second : number + 1;
    if (joins_next) after = runs_.erase(after);
    if (joins_last)
      std::prev(after)->second = end;
    else
      runs_[number] = end;
    return true;
  }

  /// The first number from `from` on that is not in the set.
  uint64_t first_missing(uint64_t from) const {
    const auto after = runs_.upper_bound(from);
    if (after == runs_.begin()) return from;
    return std::max(from, std::prev(after)->second);
  }

  uint64_t size() const {
    uint64_t numbers = 0;
    for (const auto& [begin, end] : runs_) numbers += end - begin;
    return numbers;
  }
  size_t runs() const { return runs_.size(); }
  bool operator==(const IntervalSet&) const = default;

  template <class Archive>
  void fields(Archive& archive) {
    archive(runs_);
  }

 private:
  std::map<uint64_t, uint64_t> runs_;  ///< begin of a run -> its end
};

}  // namespace trireme::ps
