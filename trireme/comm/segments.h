#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace trireme::comm {

/// Memory that several ranks have mapped, each at an address of its own.
struct Mapping {
  std::byte* base = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> keep;  ///< unmaps when the last holder lets go
};

/// The shared memory of one rank's world: makes it, and knows which addresses lie in it, so that
/// peers can work in place on a tensor instead of on a copy.
class Segments {
 public:
  virtual ~Segments() = default;

  /// Segment 0 is private memory.
  struct Location {
    uint64_t segment = 0;
    uint64_t offset = 0;
  };

  /// Where this memory lies, if all of `ranks` have it mapped; else segment 0.
  virtual Location locate(const void* data, int64_t bytes, const std::vector<int>& ranks) const = 0;

  /// The address here of a peer's location. Never null for what that peer's `locate` gave out.
  virtual std::byte* at(Location location) const = 0;

  /// Memory of `ranks` together, zeroed. Collective: all of them call it with the same id; the
  /// first makes it. Throws on every rank if it cannot be made.
  virtual Mapping make(uint64_t id, std::size_t bytes, const std::vector<int>& ranks) = 0;

  /// From now on `locate` finds this memory, which `ranks` have mapped.
  virtual void add(uint64_t id, const Mapping& mapping, const std::vector<int>& ranks) = 0;

  /// No rank uses it any more.
  virtual void remove(uint64_t id) = 0;
};

}  // namespace trireme::comm
