#include "trireme/comm/shm/shm.h"

#include <unistd.h>

#include "trireme/comm/group_backend.h"
#include "trireme/comm/monitor.h"
#include "trireme/comm/process_world.h"
#include "trireme/comm/shared/bell.h"
#include "trireme/comm/shared/world_memory.h"
#include "trireme/comm/shm/shm_segments.h"
#include "trireme/core/error.h"

namespace trireme::comm {

std::shared_ptr<Backend> make_shm(const Bootstrap& bootstrap) {
  ProcessWorld process(bootstrap);
  const auto entries = exchange_entries(bootstrap, process.entry);
  const auto members = members_of(entries);
  for (const Member& member : members) {
    if (member.host_index != 0)
      throw CommError(fmt::format(
          "shm: rank {} is on another host than rank 0 ({}); use TRIREME_BACKEND=tcp, or auto",
          &member - members.data(), member.host));
  }
  std::vector<int> all;
  for (int rank = 0; rank < bootstrap.size; ++rank) all.push_back(rank);
  auto segments = process.make_segments(entries);
  const Mapping mapping =
      segments->make_by(kWorldId, WorldMemory::bytes(bootstrap.size), all, bootstrap.deadline);
  WorldMemory memory(mapping, bootstrap.size);
  Seat& seat = memory.page->seats[bootstrap.rank];

  Transport transport;
  transport.kind = "shm";
  transport.memory = mapping.keep;
  transport.page = memory.page;
  transport.streams = std::make_unique<RingStreams>(memory.rings, bootstrap.rank, bootstrap.size,
                                                    seats_of(*memory.page, bootstrap.size));
  transport.sleeper = std::make_unique<Bell>(seat);
  transport.segments = std::move(segments);
  transport.monitor = std::move(process.monitor);
  auto world = std::make_shared<World>(bootstrap.rank, members, std::move(transport));
  return std::make_shared<GroupBackend>(
      std::move(world), std::make_unique<Lane>(kWorldId, "world", all, bootstrap.rank),
      memory.group);
}

}  // namespace trireme::comm
