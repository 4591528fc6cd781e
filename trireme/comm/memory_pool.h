#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "trireme/comm/segments.h"

namespace trireme::comm {

/// The registered memory of a world: what was handed out by `allocate`, and may be again when every
/// rank has let go of it. It is kept by the ranks that share it, not by the communicator that
/// asked: a communicator that comes and goes finds the memory of the one before.
///
/// Ranks must agree on what is free. Each offers what it holds and nobody on it uses; what all have
/// offered is free everywhere. What is on offer in one communicator is not offered in another at
/// the same time, so two of them never get the same memory.
class MemoryPool {
 public:
  struct Allocation {
    Mapping mapping;
    std::vector<int64_t> begin;     ///< of each rank's part, and the end
    std::weak_ptr<std::byte> user;  ///< whoever has it now, on this rank
    bool offered = false;
    int64_t bytes() const { return begin.back(); }
  };
  using Ranks = std::vector<int>;

  /// What nobody on this rank uses, by id, kept aside while this lives.
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

  /// Of those that are free everywhere, the smallest whose parts are large enough; 0: none.
  uint64_t find(const Ranks& ranks, const std::vector<uint64_t>& free,
                const std::vector<int64_t>& wanted);

  /// Forgets what is free everywhere, beyond what is worth keeping. Returns the ids. All ranks know
  /// the same of it, and do the same.
  std::vector<uint64_t> trim(const Ranks& ranks, const std::vector<uint64_t>& free);

  void add(const Ranks& ranks, uint64_t id, Allocation allocation);

  /// Hands out this rank's part, `index` of the ranks. Each use has an owner of its own, so that
  /// its end can be seen.
  std::shared_ptr<std::byte> use(const Ranks& ranks, uint64_t id, int index);

 private:
  std::mutex mutex_;
  std::map<Ranks, std::map<uint64_t, Allocation>> allocations_;
};

}  // namespace trireme::comm
