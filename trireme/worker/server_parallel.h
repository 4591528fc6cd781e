#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/parallel/attached.h"
#include "trireme/parallel/attached_module.h"
#include "trireme/ps/client.h"

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

/// What came of a push.
struct PushOutcome {
  Batch batch = 0;
  uint64_t missed = 0;      ///< updates by others between the pull and the push
  bool repeated = false;    ///< the servers had this batch from another worker, and did nothing
  ClockTotals totals = {};  ///< lockstep: sums over all workers
};

/// Makes the parameters of a module live on servers, where DataParallel would keep replicas equal.
/// It attaches to the parameters and does not change the module.
///
///   ps::ServerParallel replica(*model, client);
///   while (const auto work = client.next())
///     for (std::size_t i = 0; i < work->batches.size(); ++i) {
///       replica.begin(*work, i);                  // the weights of this step
///       const Batch batch = batch_of(work->batches[i]);
///       replica.backward(loss_of(model, batch));
///       replica.finish();                         // pushes the gradient
///     }
///
/// The servers' rule makes the update, so there is no optimizer here. A worker of several ranks
/// attaches a mesh of its own first; each rank pushes the elements that count on it.
///
///   begin    pull ──> masters of shards() ──> ranks that hold the same ──> Attached::updated
///   finish   gradients of shards() ──> shared memory ──> push, and the pull of the next step
///
/// Throws LifeLost from `begin` and `end`, on all ranks of a worker, when the manager has ended
/// this worker's life.
class ServerParallel {
 public:
  /// Trains what is attached to a mesh of this worker's ranks. Both must outlive this object.
  /// *Collective.*
  ServerParallel(parallel::Attached& attached, Client& client);
  /// The same for a module of a worker of one rank.
  ServerParallel(torch::nn::Module& module, Client& client);
  ~ServerParallel();
  ServerParallel(const ServerParallel&) = delete;
  ServerParallel& operator=(const ServerParallel&) = delete;

  /// Begins a step of the work that the manager has given: waits for the push of the step before,
  /// and for weights that are as new as the tables promise. *Collective.*
  void begin(const Client::Work& work, std::size_t step);
  /// The weights after the work so far, for evaluation. *Collective.*
  void read(Clock clock, uint64_t view_version);
  /// See AttachedModule::backward. Only if a module was given.
  void backward(const nn::Loss& loss, parallel::Micro micro = parallel::Micro::Last);
  /// Completes the gradients, and pushes their sums. `rate`: times the rule's learning rate.
  /// Returns the sums of this worker.
  parallel::Totals finish(double rate = 1);
  /// The second half of `finish`, for callers that have completed the gradients by themselves
  /// (Divide::Later).
  void push(const PushNumbers& numbers);
  /// Waits until the last push is on all servers that must have it. *Collective.*
  void end();

  /// The batch of this step.
  Batch batch() const { return step_.batch; }
  /// What came of the last push that was waited for; nothing if that was asked before.
  std::optional<PushOutcome> take_outcome() { return std::exchange(outcome_, {}); }

  parallel::Attached& attached() { return attached_; }
  Client& client() { return client_; }

 private:
  /// Some elements of a shard, and where they lie in the table.
  struct Place {
    std::size_t shard = 0, part = 0;  ///< of attached().shards(), of its pieces
    int64_t begin = 0, count = 0;
  };
  /// Elements that several ranks hold, in the same order on all of them.
  struct HeldAlike {
    comm::Communicator group;
    std::vector<std::pair<std::size_t, std::size_t>> parts;  ///< shard, part
  };

  void find_table();
  void take_memory();
  void find_held_alike();
  at::Tensor part_of(std::size_t shard, std::size_t part, const at::Tensor& of) const;
  Client::Operation operation() const;
  void fill_gradients();
  void wait_for_push();
  void take_weights(const Client::Result& result);
  void take_block(const ClientNode::PulledBlock& block);
  void spread();
  void show_weights(Clock clock);
  bool in_lockstep() const;
  void agree(const std::function<void()>& body);

  std::unique_ptr<parallel::AttachedModule> own_;
  parallel::Attached& attached_;
  Client& client_;
  std::optional<TableId> table_;  ///< none: all that this rank holds counts on others
  std::vector<Place> places_;     ///< in the order of the table
  std::vector<HeldAlike> alike_;
  std::shared_ptr<void> memory_;  ///< of gradients_, which servers of this host read where it is
  at::Tensor gradients_;          ///< the table's elements, zeros between the pieces

  struct Step {
    Clock clock = 0;
    uint64_t view_version = 0;
    Batch batch = 0;
    bool pulls = false;  ///< the weights of the next clock come with the push
  };
  Step step_;
  struct Pushed {
    Client::Pending pending;
    Step step;
  };
  std::optional<Pushed> pushed_;
  std::optional<PushOutcome> outcome_;
  std::optional<Clock> has_;  ///< the weights are those of this clock
  bool came_ = false;         ///< weights have come with a push, and are not shown yet
};

}  // namespace trireme::ps
