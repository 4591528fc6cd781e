#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "trireme/data/loader.h"
#include "trireme/parallel/local_updates.h"
#include "trireme/train/claims.h"

namespace trireme::train {

/// Blocks of local updates that end by the clock: every replica makes as many steps as it can until
/// the time is over, and then waits for the others. Replicas claim their batches from one counter,
/// so that every sample of an epoch is used once, whoever is fast.
///
///   replica 0   3 . 4 . 6 . 7 . 9 . |meet|        a number is a batch of batch.global / replicas
///   replica 1   5 . . . . 8 . . . . |meet|        samples, in the order of the data
class TimedBlocks {
 public:
  /// Batches from `first` up to `end`. `order`: of these batches. Collective.
  TimedBlocks(std::shared_ptr<const data::Dataset> dataset, data::Order order,
              const parallel::ReplicaMeshes& meshes, std::chrono::duration<double> length,
              Range numbers);

  void begin_block() {
    began_ = std::chrono::steady_clock::now();
    first_ = true;
  }

  /// The next batch of this replica; nothing if the time is over or no samples are left. Collective
  /// over the replica.
  std::optional<data::Batch> next();

  /// How many batches all replicas have used; call it after a meeting. Collective.
  int64_t used(const comm::Communicator& world) const;

 private:
  std::shared_ptr<const data::Dataset> dataset_;
  data::Order order_;
  Mesh replica_;
  std::chrono::duration<double> length_;
  std::unique_ptr<Claims> claims_;  // on the first rank of each replica
  std::chrono::steady_clock::time_point began_ = {};
  bool first_ = true;  // a block has at least one batch, however short it is
};

}  // namespace trireme::train
