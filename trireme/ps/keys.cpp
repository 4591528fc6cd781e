#include "trireme/ps/keys.h"

#include <cstring>

#include "trireme/ps/row_index.h"

namespace trireme::ps {

Keys::Keys(std::span<const std::byte> bytes) {
  const size_t count = bytes.size() / sizeof(uint64_t);
  RowIndex index;
  index.reserve(count);
  places_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    uint64_t key = 0;
    std::memcpy(&key, bytes.data() + i * sizeof key, sizeof key);
    uint32_t place = index.find(key);
    if (place == RowIndex::kNone) {
      place = static_cast<uint32_t>(distinct_.size());
      index.insert(key, place);
      distinct_.push_back(key);
    }
    places_.push_back(place);
  }
}

std::optional<uint64_t> first_repeated(std::span<const uint64_t> keys) {
  RowIndex index;
  index.reserve(keys.size());
  for (const uint64_t key : keys) {
    if (index.find(key) != RowIndex::kNone) return key;
    index.insert(key, 0);
  }
  return std::nullopt;
}

}  // namespace trireme::ps
