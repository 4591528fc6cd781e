#include "trireme/comm/shm/shm.h"

#include <unistd.h>

#include "trireme/comm/group_backend.h"
#include "trireme/comm/shared/futex_sleeper.h"
#include "trireme/comm/shared/world_memory.h"
#include "trireme/core/error.h"

namespace trireme::comm {

std::shared_ptr<Backend> make_shm(ProcessWorld process) {
  const Bootstrap& bootstrap = process.bootstrap;
  for (const Member& member : process.members) {
    if (member.host_index != 0)
      throw CommError(fmt::format(
          "shm: rank {} is on another host than rank 0 ({}); use TRIREME_BACKEND=tcp or auto",
          &member - process.members.data(), member.host));
  }
  const Mapping mapping = process.segments->make_by(kWorldId, WorldMemory::bytes(bootstrap.size),
                                                    process.all(), bootstrap.deadline);
  WorldMemory memory(mapping, bootstrap.size);
  Seat& seat = memory.page->seats[bootstrap.rank];

  Transport transport;
  transport.kind = "shm";
  transport.memory = mapping.keep;
  transport.page = memory.page;
  transport.streams = std::make_unique<RingStreams>(memory.rings, bootstrap.rank, bootstrap.size,
                                                    seats_of(*memory.page, bootstrap.size));
  transport.sleeper = std::make_unique<FutexSleeper>(seat);
  transport.segments = process.segments;
  transport.monitor = std::move(process.monitor);
  auto world = std::make_shared<World>(bootstrap.rank, process.members, std::move(transport),
                                       bootstrap.options);
  return std::make_shared<GroupBackend>(
      std::move(world), std::make_unique<Lane>(kWorldId, "world", process.all(), bootstrap.rank),
      memory.group);
}

}  // namespace trireme::comm
