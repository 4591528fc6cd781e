#pragma once

#include <memory>
#include <optional>

#include "trireme/train/progress.h"
#include "trireme/train/timed_blocks.h"
#include "trireme/train/trainer.h"

namespace trireme::train {

/// How far a run is: the step that it has reached of all its steps. Blocks that end by the clock
/// may have used some samples of the next one.
struct RunPosition {
  int64_t step = 0, steps = 0;
  int64_t used_samples = 0;
};

/// Trains by blocks that end by the clock, and counts them in steps of batch.global samples:
///
///   used        0 . . . . . . 8 . . . . . . . . . . 16 . . . 20        batch.global = 8
///   meetings         |     |         |            |         |
///   reports                step 1                 step 2
///
/// A report covers the meetings since the one before it. One meeting may end several steps.
class TimedTraining {
 public:
  /// Continues from `begin` to the last step. Collective.
  TimedTraining(const config::Config& config, std::shared_ptr<const data::Dataset> dataset,
                Trainer& trainer, RunPosition begin);

  bool is_over() const { return used_ == end_; }

  /// Trains until the time of a block is over, and meets. Returns the sum of the ranks' wishes to
  /// stop. Collective.
  double train_block(double wish_to_stop);

  /// By all replicas, in blocks that have ended, over all epochs. Before the first block: where
  /// this run begins. With another number of replicas a batch may begin before the checkpoint's
  /// samples end: some are then used again.
  int64_t used_samples() const { return order_.samples_before(used_); }

  /// The report of the blocks since the last one, without times; nothing if the run has reached no
  /// further step.
  std::optional<StepReport> take_report();

 private:
  Trainer& trainer_;
  const parallel::ReplicaMeshes& meshes_;
  int64_t rows_;          // of the batch that a replica claims
  data::Order order_;     // of these batches
  data::Order by_step_;   // of batch.global samples
  int64_t step_, steps_;  // `step_`: of the last report
  int64_t end_, used_;    // batches
  TimedBlocks blocks_;
  StepResult last_ = {};            // of this replica in the last block
  parallel::Meeting meeting_ = {};  // the last one
  double loss_ = 0, weight_ = 0;    // of meetings that have no report yet
};

}  // namespace trireme::train
