#include "trireme/ps/data_order.h"

#include <algorithm>

namespace trireme::ps {

namespace {

uint64_t lanes_of(const JobConfig& job) {
  return job.in_lanes() ? job.workers : 1;
}

/// Pieces of S clocks that an epoch of one lane is cut into.
uint64_t pieces_per_epoch(const JobConfig& job) {
  const uint64_t clocks = job.data.batches_per_epoch / lanes_of(job);
  return (clocks + job.data.steps_per_task - 1) / job.data.steps_per_task;
}

}  // namespace

uint64_t tasks_of(const JobConfig& job) {
  return job.data.epochs * pieces_per_epoch(job) * lanes_of(job);
}

std::vector<Batch> batches_of(const JobConfig& job, Task task) {
  const uint64_t lanes = lanes_of(job), lane = task % lanes, piece = task / lanes;
  const uint64_t epoch = piece / pieces_per_epoch(job);
  const uint64_t clocks = job.data.batches_per_epoch / lanes;
  const uint64_t begin = (piece % pieces_per_epoch(job)) * job.data.steps_per_task;
  const uint64_t end = std::min(begin + job.data.steps_per_task, clocks);
  std::vector<Batch> batches;
  for (uint64_t clock = begin; clock < end; ++clock)
    batches.push_back((epoch * clocks + clock) * lanes + lane);
  return batches;
}

}  // namespace trireme::ps
