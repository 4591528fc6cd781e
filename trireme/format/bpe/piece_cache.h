#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace trireme::format {

/// Remembers the tokens of short pieces: most of a text is the same words again. A piece has one
/// place, and a newcomer takes it. A slot is one cache line.
///
///   | bytes of the piece, then zeros (24) | tokens (8 x 4) | its length, number of tokens |
class PieceCache {
 public:
  static constexpr size_t kMostBytes = 24, kMostTokens = 8;

  struct alignas(64) Slot {
    std::array<uint64_t, kMostBytes / 8> bytes{};
    std::array<int32_t, kMostTokens> tokens{};
    uint8_t length = 0, count = 0;  // no piece has length 0
  };

  PieceCache() : slots_(kSlots) {}

  /// The piece's slot. It is the piece's if `holds` says so; else `put` makes it so.
  struct Place {
    Slot* slot;
    std::array<uint64_t, kMostBytes / 8> bytes;
    uint8_t length;

    bool holds() const { return slot->length == length && slot->bytes == bytes; }
    void put(std::span<const int32_t> tokens) const {
      if (tokens.size() > kMostTokens) return;
      slot->bytes = bytes;
      slot->length = length;
      slot->count = static_cast<uint8_t>(tokens.size());
      std::copy(tokens.begin(), tokens.end(), slot->tokens.begin());
    }
  };

  /// For a piece of 1 to kMostBytes bytes.
  Place find(std::string_view piece) {
    Place place{nullptr, {}, static_cast<uint8_t>(piece.size())};
    std::memcpy(place.bytes.data(), piece.data(), piece.size());
    uint64_t hash = place.length;
    for (const uint64_t part : place.bytes) {
      hash = (hash ^ part) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    place.slot = &slots_[hash % kSlots];
    return place;
  }

 private:
  static constexpr size_t kSlots = 1 << 15;  // 2 MiB
  std::vector<Slot> slots_;
};

}  // namespace trireme::format
