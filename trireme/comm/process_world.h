#pragma once

#include <memory>
#include <vector>

#include "trireme/comm/bootstrap.h"
#include "trireme/comm/monitor.h"
#include "trireme/comm/shm/shm_segments.h"

namespace trireme::comm {

constexpr uint64_t kWorldId = 2;  ///< of the first group; 0 and 1 mean something else

/// What every rank that is a process has, whatever carries its data: an entry in the job's table,
/// and a monitor that watches the others and hands out its segments.
struct ProcessWorld {
  explicit ProcessWorld(const Bootstrap& bootstrap);

  /// For the ranks of `entries`, once all are known.
  std::shared_ptr<ShmSegments> make_segments(const std::vector<Entry>& entries);

  const Bootstrap& bootstrap;
  Entry entry;
  std::unique_ptr<Monitor> monitor;
};

}  // namespace trireme::comm
