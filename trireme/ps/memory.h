#pragma once

#include <bit>
#include <cstdlib>
#include <memory>
#include <new>

namespace trireme::ps {

/// Where the values of ranges lie. A server that has clients on its own host takes memory that
/// those have mapped, too.
class Memory {
 public:
  virtual ~Memory() = default;
  /// Aligned to 64 bytes; what it contains is not defined. From any thread.
  virtual std::shared_ptr<void> take(size_t bytes) = 0;
};

/// Plain memory of the process.
class HeapMemory final : public Memory {
 public:
  std::shared_ptr<void> take(size_t bytes) override {
    constexpr std::align_val_t kAlign{64};
    return {::operator new(bytes, kAlign), [](void* memory) { ::operator delete(memory, kAlign); }};
  }
};

/// Memory for bytes that are soon gone again, as those of a message: its sizes are rounded up to
/// powers of two, so that it can be used again for others. Few bytes come from the heap.
inline std::shared_ptr<void> take_passing(Memory& memory, size_t bytes) {
  constexpr size_t kFew = 4096;  // less is not worth being lent to another process
  return bytes < kFew ? HeapMemory().take(bytes) : memory.take(std::bit_ceil(bytes));
}

}  // namespace trireme::ps
