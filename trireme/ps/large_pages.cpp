#include "trireme/ps/large_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

#include "trireme/core/error.h"

namespace trireme::ps {

void advise_large_pages(void* memory, size_t bytes) noexcept {
  const auto begin = (reinterpret_cast<uintptr_t>(memory) + kLargePage - 1) & ~(kLargePage - 1);
  const auto end = (reinterpret_cast<uintptr_t>(memory) + bytes) & ~(kLargePage - 1);
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

std::shared_ptr<void> SlabPool::take(size_t bytes) {
  core::check(bytes == slab_bytes_, "a pool of slabs of {} bytes has none of {}", slab_bytes_,
              bytes);
  const std::lock_guard lock(pages_->mutex);
  if (pages_->free.empty()) {
    constexpr std::align_val_t kAlign{kLargePage};
    const size_t slabs = std::max<size_t>(1, kLargePage / slab_bytes_), all = slabs * slab_bytes_;
    char* const block = static_cast<char*>(::operator new(all, kAlign));
    pages_->blocks.emplace_back(block, [](void* memory) { ::operator delete(memory, kAlign); });
    advise_large_pages(block, all);
    for (size_t slab = slabs; slab > 0; --slab)
      pages_->free.push_back(block + (slab - 1) * slab_bytes_);
  }
  void* const slab = pages_->free.back();
  pages_->free.pop_back();
  return {slab, [pages = pages_](void* memory) {
            const std::lock_guard back(pages->mutex);
            pages->free.push_back(memory);
          }};
}

}  // namespace trireme::ps
