#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/ps/large_pages.h"
#include "trireme/ps/prefetch.h"

namespace trireme::ps {

/// 64-bit key -> number of a row, by open addressing: 12 bytes a place, at most 4 of 5 places
/// taken. Key and row lie together, so that a look is one miss of the caches.
///
///   place   0   1   2   3   4   5      A key sits at its home or at the next free place after it.
///   key         a   b   c       d      Erasing a moves b and c up, unless they sit at their home;
///   home        1   1   2       5      so a search ends at the first free place.
class RowIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t find(uint64_t key) const {
    if (places_.empty()) return kNone;
    return places_[place_of(key)].row;
  }

  /// Asks for the memory that `find` will look at.
  void prefetch(uint64_t key) const {
    if (!places_.empty()) ps::prefetch(&places_[home_of(key)]);
  }

  /// Takes memory for so many keys in one go.
  void reserve(size_t keys) {
    size_t places = 16;
    while (4 * places < 5 * keys) places *= 2;
    if (places > places_.size()) resize(places);
  }

  /// The key must be new.
  void insert(uint64_t key, uint32_t row) {
    if (5 * (size_ + 1) > 4 * places_.size()) resize(places_.empty() ? 16 : 2 * places_.size());
    put(key, row);
    ++size_;
  }

  /// The key must be there.
  void erase(uint64_t key) {
    size_t hole = place_of(key);
    --size_;
    for (size_t place = hole;;) {
      places_[hole].row = kNone;
      do {
        place = next(place);
        if (places_[place].row == kNone) return;
      } while (distance(home_of(places_[place].key), place) < distance(hole, place));
      places_[hole] = places_[place];
      hole = place;
    }
  }

  size_t size() const { return size_; }
  size_t bytes() const { return places_.size() * sizeof(Place); }

 private:
  struct [[gnu::packed]] Place {
    uint64_t key = 0;
    uint32_t row = kNone;  ///< kNone: the place is free
  };
  static_assert(sizeof(Place) == 12);

  size_t next(size_t place) const { return (place + 1) & (places_.size() - 1); }
  size_t distance(size_t from, size_t to) const { return (to - from) & (places_.size() - 1); }
  size_t home_of(uint64_t key) const {
    key ^= key >> 32;
    key *= 0x9E3779B97F4A7C15;  // spreads neighbours
    return (key >> 20) & (places_.size() - 1);
  }
  size_t place_of(uint64_t key) const {
    size_t place = home_of(key);
    while (places_[place].row != kNone && places_[place].key != key) place = next(place);
    return place;
  }
  void put(uint64_t key, uint32_t row) { places_[place_of(key)] = {key, row}; }
  void resize(size_t places) {
    const std::vector<Place> before = std::move(places_);
    places_.reserve(places);
    advise_large_pages(places_.data(), places * sizeof(Place));
    places_.assign(places, {});
    for (const Place& place : before)
      if (place.row != kNone) put(place.key, place.row);
  }

  std::vector<Place> places_;
  size_t size_ = 0;
};

}  // namespace trireme::ps
