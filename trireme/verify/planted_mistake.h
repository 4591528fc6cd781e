#pragma once

#include <vector>

#include "trireme/train/trainer.h"
#include "trireme/verify/mistake.h"

namespace trireme::verify {

/// Makes one known mistake in the training of a mesh, to test the prover. Throws ConfigError if the
/// mistake is not possible on this mesh.
class PlantedMistake {
 public:
  /// Collective.
  PlantedMistake(Mistake mistake, train::Trainer& trainer, const Mesh& mesh);
  ~PlantedMistake();
  PlantedMistake(const PlantedMistake&) = delete;
  PlantedMistake& operator=(const PlantedMistake&) = delete;

  /// Which block of a batch this rank reads.
  int block(int rank, int size) const;
  /// Which batch this rank reads instead of `number`.
  int64_t batch_number(int64_t number, const data::Order& order) const;
  /// Changes the batch that was read.
  void touch(data::Batch& batch) const;
  /// Changes the gradients of a step, when they are complete.
  void touch_gradients();
  /// Changes the weights after a step.
  void touch_weights(int64_t step);

 private:
  void require(bool possible, const char* why) const;
  void swap_shards();

  Mistake mistake_;
  train::Trainer& trainer_;
  const Mesh& mesh_;
  bool last_;                       // is this the rank that makes the mistake?
  int averaged_ = 1;                // Average: over how many ranks the mean should be
  std::vector<at::Tensor> before_;  // Stale: the initial weights
  at::Tensor victim_, own_;         // Reduce: a parameter, and this rank's part of its gradient
  std::size_t parameter_ = 0;       // which it is
  unsigned hook_ = 0;               // on the victim
};

}  // namespace trireme::verify
