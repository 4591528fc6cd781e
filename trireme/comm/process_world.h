#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/bootstrap.h"
#include "trireme/comm/monitor.h"
#include "trireme/comm/shm/shm_segments.h"

namespace trireme::comm {

constexpr uint64_t kWorldId = 2;  ///< of the first group; 0 and 1 mean something else

/// What carries the data between ranks that are processes. Auto: shared memory where all of them
/// are on one host, else sockets.
enum class Carrier : uint8_t { Auto, Shm, Tcp };

/// Ranks that are processes, once they have met: what they have in common, whatever carries their
/// data. `make_shm` and `make_tcp` make a world of it.
struct ProcessWorld {
  /// Meets the others. Collective over the job's ranks. Throws where they do not want the same.
  ProcessWorld(const Bootstrap& bootstrap, Carrier wanted);

  /// What was wanted, or what Auto means here; the same on all ranks.
  Carrier carrier() const;
  /// The ranks of this rank's host.
  std::vector<int> here() const;
  std::vector<int> all() const;

  const Bootstrap& bootstrap;
  Carrier wanted;
  std::optional<net::Listener> listener;  ///< for streams; none where shm is wanted
  std::vector<Entry> entries;
  std::vector<Member> members;
  std::unique_ptr<Monitor> monitor;
  std::shared_ptr<ShmSegments> segments;
};

}  // namespace trireme::comm
