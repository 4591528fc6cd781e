#pragma once

#include <string>
#include <vector>

#include "trireme/data/order.h"
#include "trireme/verify/planted_mistake.h"
#include "trireme/verify/step_recorder.h"
#include "trireme/verify/verify.h"

namespace trireme::verify {

/// One of the trainings that are compared.
class ComparedRun {
 public:
  struct Options {
    Mistake plant = Mistake::None;
    int64_t steps = 1;
    parallel::StageSizes cut = {};  ///< of a pipeline that this one continues
  };
  /// The setup and the configuration must live as long. Collective.
  ComparedRun(const TrainingSetup& setup, const config::Config& config, const Mesh& mesh,
              Options options);
  ComparedRun(const ComparedRun&) = delete;
  ComparedRun& operator=(const ComparedRun&) = delete;

  /// One update, and what it came to. The last of several is on the last batch of an epoch where
  /// that is a short one. Collective.
  std::vector<TensorRecord> step(int64_t step);

  /// Weights and buffers as they are now. Collective.
  std::vector<TensorRecord> state() const { return recorder_.state(); }

  /// After the last update: the same, and the loss of an evaluation on a number of samples that
  /// cannot be dealt evenly. Collective.
  std::vector<TensorRecord> end();

  /// Goes on from a checkpoint in that folder, which may be of another mesh and precision.
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
  data::Order order_;
  int64_t steps_;
  train::Trainer trainer_;
  PlantedMistake plant_;
  StepRecorder recorder_;
};

}  // namespace trireme::verify
