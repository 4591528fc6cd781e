#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/bootstrap.h"
#include "trireme/comm/monitor.h"
#include "trireme/comm/shm/shm_segments.h"

namespace trireme::comm {

constexpr uint64_t kWorldId = 2;  ///< of the first group; 0 and 1 have other meanings

/// What carries the data between ranks that are processes. Auto: shared memory if all of them are
/// on one host, else sockets; and NCCL for tensors on GPUs if every rank has one of its own. Nccl:
/// the same, but NCCL must be possible.
enum class TransportKind : uint8_t { Auto, Shm, Tcp, Nccl };

/// Ranks that are processes and have found each other: what they need whatever carries their data.
/// `make_shm` and `make_tcp` make a world of it.
struct ProcessWorld {
  /// Finds the other ranks. Collective over the job's ranks. Throws if they ask for different
  /// backends.
  ProcessWorld(const Bootstrap& bootstrap, TransportKind wanted);

  /// What carries host memory: Shm or Tcp. The same on every rank.
  TransportKind host_transport() const;
  /// The ranks of this rank's host.
  std::vector<int> here() const;
  std::vector<int> all() const;

  const Bootstrap& bootstrap;
  TransportKind wanted;
  std::optional<net::Listener> listener;  ///< for streams; none for shm
  std::vector<RankEntry> entries;
  std::vector<Member> members;
  std::unique_ptr<Monitor> monitor;
  std::shared_ptr<ShmSegments> segments;
};

}  // namespace trireme::comm
