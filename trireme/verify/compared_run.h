#pragma once

#include <string>
#include <vector>

#include "trireme/data/order.h"
#include "trireme/verify/planted_mistake.h"
#include "trireme/verify/step_recorder.h"
#include "trireme/verify/verify.h"

namespace trireme::verify {

/// One of the runs that are compared: a trainer with a recorder.
class ComparedRun {
 public:
  struct Options {
    Mistake plant = Mistake::None;
    int64_t steps = 1;
    parallel::StageSizes cut = {};  ///< the cut of the pipeline that this run continues
  };
  /// The setup and the configuration must outlive this object. Collective.
  ComparedRun(const TrainingSetup& setup, const config::Config& config, const Mesh& mesh,
              Options options);
  ComparedRun(const ComparedRun&) = delete;
  ComparedRun& operator=(const ComparedRun&) = delete;

  /// Makes one update and returns its records. If the last batch of an epoch is short, the last of
  /// several steps runs on that one. Collective.
  std::vector<TensorRecord> step(int64_t step);

  /// Weights and buffers as they are now. Collective.
  std::vector<TensorRecord> state() const { return recorder_.state(); }

  /// After the last update: the same, and the loss of an evaluation on a number of samples that
  /// cannot be dealt evenly. Collective.
  std::vector<TensorRecord> end();

  /// Continues from a checkpoint in that folder, which may be of another mesh and precision.
  /// Collective.
  void load(const std::string& folder);

  train::Trainer& trainer() { return trainer_; }
  const Mesh& mesh() const { return mesh_; }
  const StepRecorder& recorder() const { return recorder_; }

 private:
  int64_t batch_of(int64_t step) const;

  const TrainingSetup& setup_;
  const config::Config& config_;
  Mesh mesh_;
  std::shared_ptr<const data::Dataset> part_;  // of each sequence, that this rank has
  data::Order order_;
  int64_t steps_;
  train::Trainer trainer_;
  PlantedMistake plant_;
  StepRecorder recorder_;
};

}  // namespace trireme::verify
