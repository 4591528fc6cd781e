#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/ps/large_pages.h"

namespace trireme::ps {

/// 64-bit key -> number of a row, by open addressing: 12 bytes a place, at most 4 of 5 places
/// taken.
///
///   place   0   1   2   3   4   5      A key sits at its home or at the next free place after it.
///   key         a   b   c       d      Erasing a moves b and c up, unless they sit at their home;
///   home        1   1   2       5      so a search ends at the first free place.
class RowIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t find(uint64_t key) const {
    if (rows_.empty()) return kNone;
    return rows_[place_of(key)];
  }

  /// Asks for the memory that `find` will look at.
  void prefetch(uint64_t key) const {
    if (rows_.empty()) return;
    const size_t home = home_of(key);
    __builtin_prefetch(&keys_[home]);
    __builtin_prefetch(&rows_[home]);
  }

  /// Takes memory for so many keys in one go.
  void reserve(size_t keys) {
    size_t places = 16;
    while (4 * places < 5 * keys) places *= 2;
    if (places > rows_.size()) resize(places);
  }

  /// The key must be new.
  void insert(uint64_t key, uint32_t row) {
    if (5 * (size_ + 1) > 4 * rows_.size()) resize(rows_.empty() ? 16 : 2 * rows_.size());
    put(key, row);
    ++size_;
  }

  /// The key must be there.
  void erase(uint64_t key) {
    size_t hole = place_of(key);
    --size_;
    for (size_t place = hole;;) {
      rows_[hole] = kNone;
      do {
        place = next(place);
        if (rows_[place] == kNone) return;
      } while (distance(home_of(keys_[place]), place) < distance(hole, place));
      keys_[hole] = keys_[place];
      rows_[hole] = rows_[place];
      hole = place;
    }
  }

  size_t size() const { return size_; }
  size_t bytes() const { return rows_.size() * (sizeof(uint64_t) + sizeof(uint32_t)); }

 private:
  size_t next(size_t place) const { return (place + 1) & (rows_.size() - 1); }
  size_t distance(size_t from, size_t to) const { return (to - from) & (rows_.size() - 1); }
  size_t home_of(uint64_t key) const {
    key ^= key >> 32;
    key *= 0x9E3779B97F4A7C15;  // spreads neighbours
    return (key >> 20) & (rows_.size() - 1);
  }
  size_t place_of(uint64_t key) const {
    size_t place = home_of(key);
    while (rows_[place] != kNone && keys_[place] != key) place = next(place);
    return place;
  }
  void put(uint64_t key, uint32_t row) {
    const size_t place = place_of(key);
    keys_[place] = key;
    rows_[place] = row;
  }
  void resize(size_t places) {
    const std::vector<uint64_t> keys = std::move(keys_);
    const std::vector<uint32_t> rows = std::move(rows_);
    keys_.reserve(places);
    rows_.reserve(places);
    advise_large_pages(keys_.data(), places * sizeof(uint64_t));
    advise_large_pages(rows_.data(), places * sizeof(uint32_t));
    keys_.assign(places, 0);
    rows_.assign(places, kNone);
    for (size_t place = 0; place < rows.size(); ++place)
      if (rows[place] != kNone) put(keys[place], rows[place]);
  }

  std::vector<uint64_t> keys_;
  std::vector<uint32_t> rows_;
  size_t size_ = 0;
};

}  // namespace trireme::ps
