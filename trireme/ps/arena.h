#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "trireme/net/shared_memory.h"
#include "trireme/ps/memory.h"

namespace trireme::ps {

/// Memory that this process can lend to others of its host. It comes in segments, which are passed
/// to another process when a message first refers to them.
class Arena final : public Memory, public std::enable_shared_from_this<Arena> {
 public:
  std::shared_ptr<void> take(size_t bytes) override;

  struct Location {
    uint32_t segment = 0;
    uint64_t offset = 0;
  };
  /// Where this memory lies; nothing: it is not of this arena.
  std::optional<Location> locate(const void* memory, size_t bytes) const;

  struct Segment {
    int fd = -1;
    uint64_t bytes = 0;
  };
  Segment segment(uint32_t index) const;

 private:
  struct Mapped {
    net::Fd fd;
    std::shared_ptr<std::byte> base;
    uint64_t bytes = 0, used = 0;
  };
  std::byte* find_room(size_t bytes);
  void give_back(std::byte* memory, size_t bytes);

  mutable std::mutex mutex_;
  std::vector<Mapped> segments_;
  std::map<const std::byte*, uint32_t> by_address_;
  std::map<size_t, std::vector<std::byte*>> free_;  ///< by size: ranges and gradients recur
};

}  // namespace trireme::ps
