#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "trireme/comm/segments.h"

namespace trireme::comm {

/// The registered memory of a world: `allocate` hands it out, and may hand it out again when every
/// rank has released it. It belongs to the set of ranks that share it, not to the communicator that
/// asked for it, so a new communicator of the same ranks reuses the memory of an old one.
///
/// Ranks must agree on what is free. Each rank offers what it does not use; memory that all ranks
/// have offered is free everywhere. Memory on offer in one communicator is not offered in another
/// at the same time, so two communicators never get the same memory.
class MemoryPool {
 public:
  struct Allocation {
    Mapping mapping;
    std::vector<int64_t> begin;     ///< of each rank's part, and the end
    std::weak_ptr<std::byte> user;  ///< who uses it now, on this rank
    bool offered = false;
    int64_t bytes() const { return begin.back(); }
  };
  using Ranks = std::vector<int>;

  /// The ids of the memory that this rank does not use. Reserved while the offer exists.
  class Offer {
   public:
    Offer(MemoryPool& pool, const Ranks& ranks);
    ~Offer();
    Offer(const Offer&) = delete;
    Offer& operator=(const Offer&) = delete;
    const std::vector<uint64_t>& ids() const { return ids_; }

   private:
    MemoryPool& pool_;
    const Ranks& ranks_;
    std::vector<uint64_t> ids_;
  };

  /// The smallest allocation in `free` whose parts are large enough; 0: none.
  uint64_t find(const Ranks& ranks, const std::vector<uint64_t>& free,
                const std::vector<int64_t>& wanted);

  /// Drops allocations that are free everywhere, down to the size that is worth keeping. Returns
  /// their ids. All ranks pass the same list and drop the same ones.
  std::vector<uint64_t> trim(const Ranks& ranks, const std::vector<uint64_t>& free);

  void add(const Ranks& ranks, uint64_t id, Allocation allocation);

  /// Hands out this rank's part; `index` is its place in `ranks`. Each use has its own owner, so
  /// that the pool sees when the use ends.
  std::shared_ptr<std::byte> use(const Ranks& ranks, uint64_t id, int index);

 private:
  std::mutex mutex_;
  std::map<Ranks, std::map<uint64_t, Allocation>> allocations_;
};

}  // namespace trireme::comm
