#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "trireme/parallel/attached.h"
#include "trireme/ps/client.h"
#include "trireme/ps/training_step.h"

namespace trireme::ps {

/// How the servers use the gradient of a step.
struct PushNumbers {
  double weight = 0, loss = 0;  ///< sums over the samples of the gradient
  double divisor = 1;           ///< of the gradient, except in lockstep, where servers know it
  double rate = 1;              ///< times the learning rate of the rule
  /// How many times the samples of this push the batch of all workers has: a push that is applied
  /// as it comes counts so much less. 0: the number of workers.
  double parts = 0;
};

/// The elements of this rank's table, and which shards have them.
struct TablePlace {
  std::size_t shard = 0, part = 0;  ///< of Attached::shards(), of its pieces
  int64_t begin = 0, count = 0;     ///< in the table
};

/// The reducer of a worker: sums gradients over the ranks of the worker, if there are several, and
/// pushes the sums to the servers. They leave when all gradients of the step are complete: the norm
/// to clip by, and gradients that come late, are only known then.
///
///   buckets ──> sums over the worker's ranks ──> end_step: memory that servers of this host read
///                                                          │
///                                        push(numbers) ────┴──> servers
class PushReducer final : public parallel::Reducer {
 public:
  /// For `mesh`, of this worker's ranks. *Collective.*
  PushReducer(const Mesh& mesh, Client& client);

  /// Finds the table of this rank, which consists of what counts on it of these shards.
  void bind(const parallel::Attached& attached);
  /// None: all that this rank holds counts on others.
  std::optional<TableId> table() const { return table_; }
  const std::vector<TablePlace>& places() const { return places_; }  ///< in the table's order
  at::ScalarType dtype() const { return gradients_.scalar_type(); }

  parallel::StartedSum start(parallel::GradientBlock block, const RankSet& over) override {
    return inner_->start(std::move(block), over);
  }
  /// Copies the gradients to where servers read them.
  void end_step(double weight) override;

  /// Pushes what `end_step` has taken: `operation` says for which clock and batch. With a `step`,
  /// it is told. The memory must not be filled again before the push is waited for.
  Client::Pending push(Client::Operation operation, const PushNumbers& numbers,
                       TrainingStep* step = nullptr);
  /// After the loss of a life, a server may still read the memory of a push: takes other memory.
  void take_memory();

 private:
  std::shared_ptr<parallel::Reducer> inner_;
  Client& client_;
  int rank_;
  const parallel::Attached* attached_ = nullptr;
  std::optional<TableId> table_;
  std::vector<TablePlace> places_;
  std::shared_ptr<void> memory_;  ///< of gradients_
  at::Tensor gradients_;          ///< the table's elements, zeros between the pieces
};

}  // namespace trireme::ps
