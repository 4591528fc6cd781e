#pragma once

#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "trireme/ps/memory.h"

namespace trireme::ps {

/// Memory for messages that come in. Fresh pages cost more than the copy into them, so buffers are
/// used again.
class Buffers final : public Memory {
 public:
  std::shared_ptr<void> take(size_t bytes) override {
    const size_t rounded = std::bit_ceil(std::max(bytes, kLeastBytes));
    std::shared_ptr<void> memory = shelf_->find(rounded);
    if (!memory) memory = HeapMemory().take(rounded);
    void* const address = memory.get();
    return {address, [memory, rounded, shelf = shelf_](void*) mutable {
              shelf->put(rounded, std::move(memory));
            }};
  }

 private:
  static constexpr size_t kLeastBytes = 4096, kMostKept = size_t{512} << 20;

  /// What nobody uses now. It outlives the Buffers if some of its memory does.
  struct Shelf {
    std::mutex mutex;
    std::map<size_t, std::vector<std::shared_ptr<void>>> by_size;
    size_t bytes = 0;

    std::shared_ptr<void> find(size_t size) {
      const std::lock_guard lock(mutex);
      auto& kept = by_size[size];
      if (kept.empty()) return nullptr;
      auto memory = std::move(kept.back());
      kept.pop_back();
      bytes -= size;
      return memory;
    }
    void put(size_t size, std::shared_ptr<void> memory) {
      const std::lock_guard lock(mutex);
      if (bytes + size > kMostKept) return;
      by_size[size].push_back(std::move(memory));
      bytes += size;
    }
  };
  std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
};

}  // namespace trireme::ps
