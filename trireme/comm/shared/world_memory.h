#pragma once

#include <cstddef>

#include "trireme/comm/host_page.h"
#include "trireme/comm/segments.h"
#include "trireme/comm/shared/group.h"
#include "trireme/comm/shared/ring_streams.h"

namespace trireme::comm {

/// The memory that all ranks of a world share from the start: | page | rings | first group |.
struct WorldMemory {
  HostPage* page = nullptr;
  std::byte* rings = nullptr;
  Mapping group;

  static std::size_t bytes(int size) {
    return page_bytes(size) + align(RingStreams::bytes(size)) + SharedGroup::bytes(size);
  }
  WorldMemory(const Mapping& memory, int size)
      : page(reinterpret_cast<HostPage*>(memory.base)), rings(memory.base + page_bytes(size)) {
    group = {rings + align(RingStreams::bytes(size)), SharedGroup::bytes(size), memory.keep};
  }

  static std::size_t page_bytes(int size) { return align(HostPage::bytes(size)); }

 private:
  static std::size_t align(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
};

/// The seats of all ranks, to ring their bells.
inline std::vector<Seat*> seats_of(HostPage& page, int size) {
  std::vector<Seat*> seats;
  for (int rank = 0; rank < size; ++rank) seats.push_back(&page.seats[rank]);
  return seats;
}

}  // namespace trireme::comm
