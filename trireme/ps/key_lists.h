#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/hash.h"

namespace trireme::ps {

/// The name of a list of keys; never 0.
inline uint64_t name_of_keys(const std::vector<uint64_t>& keys) {
  return core::hash64(keys.data(), keys.size() * sizeof(uint64_t)) | 1;
}

/// The key lists that were used last. A worker pushes gradients of the rows that it has pulled:
/// instead of the same keys again it sends their name.
class KeyLists {
 public:
  /// The keys of that name, or nullptr.
  const std::vector<uint64_t>* find(uint64_t name) const {
    for (const auto& [known, keys] : lists_)
      if (known == name) return &keys;
    return nullptr;
  }
  void add(uint64_t name, const std::vector<uint64_t>& keys) {
    if (find(name)) return;
    lists_.emplace_front(name, keys);
    if (lists_.size() > kMost) lists_.pop_back();
  }

 private:
  static constexpr size_t kMost = 16;
  std::deque<std::pair<uint64_t, std::vector<uint64_t>>> lists_;
};

}  // namespace trireme::ps
