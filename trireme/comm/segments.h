#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace trireme::comm {

/// Memory that several ranks have mapped, each at its own address.
struct Mapping {
  std::byte* base = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> keep;  ///< unmaps when the last copy is destroyed
};

/// The shared memory of one rank's world: makes segments and knows which addresses lie in them, so
/// that peers can work in place on a tensor instead of on a copy.
class Segments {
 public:
  virtual ~Segments() = default;

  /// A place in a segment. Segment 0 is private memory.
  struct Location {
    uint64_t segment = 0;
    uint64_t offset = 0;
  };

  /// The location of this memory if all of `ranks` have mapped it; else segment 0.
  virtual Location locate(const void* data, int64_t bytes, const std::vector<int>& ranks) const = 0;

  /// The address of a peer's location on this rank. Never null for a result of that peer's
  /// `locate`.
  virtual std::byte* at(Location location) const = 0;

  /// Makes zeroed memory that `ranks` share. Collective: all of them call it with the same id.
  /// Throws on every rank if it cannot be made.
  virtual Mapping make(uint64_t id, std::size_t bytes, const std::vector<int>& ranks) = 0;

  /// From now on `locate` finds this memory, which `ranks` have mapped.
  virtual void add(uint64_t id, const Mapping& mapping, const std::vector<int>& ranks) = 0;

  /// Forgets a segment that no rank uses any more.
  virtual void remove(uint64_t id) = 0;
};

}  // namespace trireme::comm
