#pragma once

#include <vector>

#include "trireme/ps/job.h"

namespace trireme::ps {

/// How the data order is cut into tasks of at most S = steps_per_task batches. No task spans two
/// epochs.
///
///   lanes (lockstep), 2 workers, S = 2          otherwise, S = 3
///     clock      0   1   2   3                    task 0: batches 0 1 2
///     worker 0   0   2 | 4   6   tasks 0 and 2    task 1: batches 3 4 5
///     worker 1   1   3 | 5   7   tasks 1 and 3    any worker does any of them
uint64_t tasks_of(const JobConfig& job);
std::vector<Batch> batches_of(const JobConfig& job, Task task);

/// Lanes only: the clock of a batch is the same for everyone.
inline Clock lane_clock(const JobConfig& job, Batch batch) {
  return batch / job.workers;
}

}  // namespace trireme::ps
