#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "trireme/ps/memory.h"

namespace trireme::ps {

/// A page of the size that the processor knows beside the usual 4 KiB.
constexpr size_t kLargePage = size_t{2} << 20;

/// Asks for large pages where whole ones lie in this memory. A table of rows is larger than what
/// the processor remembers of small pages, so that finding the page of a random row takes longer
/// than reading the row. Where the system has none, nothing changes.
void advise_large_pages(void* memory, size_t bytes) noexcept;

/// Memory in pieces of one size, cut out of large pages. Pieces that come back are used again;
/// the pages go when the pool and all pieces are gone. From any thread.
class SlabPool final : public Memory {
 public:
  explicit SlabPool(size_t slab_bytes) : slab_bytes_(slab_bytes) {}

  std::shared_ptr<void> take(size_t bytes) override;

 private:
  struct Pages {
    std::mutex mutex;
    std::vector<std::shared_ptr<void>> blocks;
    std::vector<void*> free;
  };

  const size_t slab_bytes_;
  std::shared_ptr<Pages> pages_ = std::make_shared<Pages>();
};

}  // namespace trireme::ps
