#pragma once

#include <vector>

#include "trireme/train/trainer.h"
#include "trireme/verify/mistake.h"

namespace trireme::verify {

/// Makes one known mistake in the training of a mesh. Throws ConfigError where the mesh has nothing
/// that could go wrong so.
class PlantedMistake {
 public:
  /// Collective.
  PlantedMistake(Mistake mistake, train::Trainer& trainer, const Mesh& mesh);
  ~PlantedMistake();
  PlantedMistake(const PlantedMistake&) = delete;
  PlantedMistake& operator=(const PlantedMistake&) = delete;

  /// The place in a batch that this rank reads.
  int block(int rank, int size) const;
  /// Which batch it reads instead of this one.
  int64_t batch_number(int64_t number, const data::Order& order) const;
  /// What it has read.
  void touch(data::Batch& batch) const;
  /// The gradients of a step, when they are there.
  void touch_gradients();
  /// The weights, after a step.
  void touch_weights(int64_t step);

 private:
  void require(bool possible, const char* why) const;
  void swap_shards();

  Mistake mistake_;
  train::Trainer& trainer_;
  const Mesh& mesh_;
  bool last_;                       // is this the rank that goes wrong?
  int averaged_ = 1;                // Average: over how many ranks the mean was to be
  std::vector<at::Tensor> before_;  // Stale: the initial weights
  at::Tensor victim_, own_;         // Reduce: a parameter, and this rank's part of its gradient
  std::size_t parameter_ = 0;       // which it is
  unsigned hook_ = 0;               // on the victim
};

}  // namespace trireme::verify
