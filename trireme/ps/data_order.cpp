#include "trireme/ps/data_order.h"

#include <algorithm>

namespace trireme::ps {

namespace {

/// An epoch of one lane, in clocks, and the pieces of S clocks that it is cut into. The first epoch
/// may begin in its middle.
struct LaneOrder {
  explicit LaneOrder(const JobConfig& job)
      : lanes(job.in_lanes() ? job.workers : 1),
        epoch_clocks(job.data.batches_per_epoch / lanes),
        piece_clocks(job.data.steps_per_task),
        first_epoch(job.data.begin / lanes / epoch_clocks),
        first_clock(job.data.begin / lanes % epoch_clocks) {}

  uint64_t pieces(uint64_t clocks) const { return (clocks + piece_clocks - 1) / piece_clocks; }
  uint64_t first_pieces() const { return pieces(epoch_clocks - first_clock); }

  uint64_t lanes, epoch_clocks, piece_clocks, first_epoch, first_clock;
};

}  // namespace

uint64_t tasks_of(const JobConfig& job) {
  const LaneOrder order(job);
  if (order.first_epoch >= job.data.epochs) return 0;
  const uint64_t whole_epochs = job.data.epochs - order.first_epoch - 1;
  return order.lanes * (order.first_pieces() + whole_epochs * order.pieces(order.epoch_clocks));
}

std::vector<Batch> batches_of(const JobConfig& job, Task task) {
  const LaneOrder order(job);
  const uint64_t lane = task % order.lanes, per_epoch = order.pieces(order.epoch_clocks);
  uint64_t piece = task / order.lanes, epoch = order.first_epoch, origin = order.first_clock;
  if (piece >= order.first_pieces()) {
    piece -= order.first_pieces();
    epoch += 1 + piece / per_epoch;
    piece %= per_epoch;
    origin = 0;
  }
  const uint64_t begin = origin + piece * order.piece_clocks;
  const uint64_t end = std::min(begin + order.piece_clocks, order.epoch_clocks);
  std::vector<Batch> batches;
  for (uint64_t clock = begin; clock < end; ++clock)
    batches.push_back((epoch * order.epoch_clocks + clock) * order.lanes + lane);
  return batches;
}

}  // namespace trireme::ps
