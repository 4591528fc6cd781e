#include "trireme/comm/memory_pool.h"

#include <numeric>

namespace trireme::comm {

namespace {

constexpr int64_t kPoolBytes = 256 << 20;  // kept although nobody uses them

}  // namespace

MemoryPool::Offer::Offer(MemoryPool& pool, const Ranks& ranks) : pool_(pool), ranks_(ranks) {
  const std::lock_guard lock(pool_.mutex_);
  for (auto& [id, allocation] : pool_.allocations_[ranks_]) {
    if (allocation.offered || !allocation.user.expired()) continue;
    allocation.offered = true;
    ids_.push_back(id);
  }
}

MemoryPool::Offer::~Offer() {
  const std::lock_guard lock(pool_.mutex_);
  auto& allocations = pool_.allocations_[ranks_];
  for (const uint64_t id : ids_) {
    const auto found = allocations.find(id);
    if (found != allocations.end()) found->second.offered = false;
  }
}

uint64_t MemoryPool::find(const Ranks& ranks, const std::vector<uint64_t>& free,
                          const std::vector<int64_t>& wanted) {
  const std::lock_guard lock(mutex_);
  // Do not use something huge for a small request: it would then be missing for a large one.
  const int64_t total = std::accumulate(wanted.begin(), wanted.end(), int64_t{0});
  int64_t best_bytes = 4 * total + (1 << 20) + 1;
  uint64_t best = 0;
  const auto& allocations = allocations_[ranks];
  for (const uint64_t id : free) {
    const Allocation& old = allocations.at(id);
    bool fits = old.bytes() < best_bytes;
    for (std::size_t rank = 0; fits && rank < wanted.size(); ++rank)
      fits = old.begin[rank + 1] - old.begin[rank] >= wanted[rank];
    if (!fits) continue;
    best = id;
    best_bytes = old.bytes();
  }
  return best;
}

std::vector<uint64_t> MemoryPool::trim(const Ranks& ranks, const std::vector<uint64_t>& free) {
  const std::lock_guard lock(mutex_);
  auto& allocations = allocations_[ranks];
  std::vector<uint64_t> forgotten;
  int64_t kept = 0;
  for (const uint64_t id : free) {
    kept += allocations.at(id).bytes();
    if (kept <= kPoolBytes) continue;
    kept -= allocations.at(id).bytes();
    allocations.erase(id);
    forgotten.push_back(id);
  }
  return forgotten;
}

void MemoryPool::add(const Ranks& ranks, uint64_t id, Allocation allocation) {
  const std::lock_guard lock(mutex_);
  allocations_[ranks][id] = std::move(allocation);
}

std::shared_ptr<std::byte> MemoryPool::use(const Ranks& ranks, uint64_t id, int index) {
  const std::lock_guard lock(mutex_);
  Allocation& allocation = allocations_[ranks].at(id);
  std::byte* mine = allocation.mapping.base + allocation.begin[static_cast<std::size_t>(index)];
  std::shared_ptr<std::byte> user(mine, [keep = allocation.mapping.keep](std::byte*) {});
  allocation.user = user;
  return user;
}

}  // namespace trireme::comm
