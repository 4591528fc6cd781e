#include "trireme/ps/arena.h"

#include <algorithm>

namespace trireme::ps {

namespace {

constexpr size_t kPageBytes = 4096, kSegmentBytes = size_t{64} << 20;

size_t whole_pages(size_t bytes) {
  return std::max(kPageBytes, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
}

}  // namespace

std::shared_ptr<void> Arena::take(size_t bytes) {
  const size_t size = whole_pages(bytes);
  std::byte* memory = nullptr;
  {
    const std::lock_guard lock(mutex_);
    memory = find_room(size);
  }
  return {memory, [arena = shared_from_this(), size](void* taken) {
            arena->give_back(static_cast<std::byte*>(taken), size);
          }};
}

std::byte* Arena::find_room(size_t bytes) {
  if (auto& kept = free_[bytes]; !kept.empty()) {
    std::byte* memory = kept.back();
    kept.pop_back();
    return memory;
  }
  auto room = std::ranges::find_if(
      segments_, [&](const Mapped& segment) { return segment.bytes - segment.used >= bytes; });
  if (room == segments_.end()) {
    Mapped made;
    made.bytes = std::max(bytes, kSegmentBytes);
    made.fd = net::make_shared_memory(made.bytes);
    made.base = net::map_shared_memory(made.fd.get(), made.bytes);
    by_address_[made.base.get()] = static_cast<uint32_t>(segments_.size());
    room = segments_.insert(segments_.end(), std::move(made));
  }
  std::byte* memory = room->base.get() + room->used;
  room->used += bytes;
  return memory;
}

void Arena::give_back(std::byte* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  free_[bytes].push_back(memory);
}

std::optional<Arena::Location> Arena::locate(const void* memory, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto* address = static_cast<const std::byte*>(memory);
  auto found = by_address_.upper_bound(address);
  if (found == by_address_.begin()) return {};
  --found;
  const Mapped& segment = segments_[found->second];
  const auto offset = static_cast<uint64_t>(address - found->first);
  if (offset + bytes > segment.bytes) return {};
  return Location{found->second, offset};
}

Arena::Segment Arena::segment(uint32_t index) const {
  const std::lock_guard lock(mutex_);
  return {segments_[index].fd.get(), segments_[index].bytes};
}

}  // namespace trireme::ps
