#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/parallel/attached_module.h"
#include "trireme/worker/buffer_table.h"
#include "trireme/worker/push_reducer.h"

namespace trireme::ps {

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
///   ps::JobConfig job{.data = ..., .tables = {ps::module_table(*model, ps::make_sgd({.lr =
///   0.1}))}}; const auto worker = ps::join(job); if (!worker) return 0; ps::ServerParallel
///   replica(*model, worker->client()); worker->train([&](ps::TrainingStep& step) {
///     replica.begin(step);                        // the weights of this step
///     replica.backward(loss_of(model, step.batch()));
///     replica.finish();                           // pushes the gradient
///   });
///
/// The servers' rule makes the update, so there is no optimizer here. A worker of several ranks
/// attaches a mesh of its own first, with a PushReducer; each rank pushes the elements that count
/// on it.
///
///   begin    pull ──> masters of shards() ──> ranks that hold the same ──> Attached::updated
///   finish   gradients of shards() ──> PushReducer ──> push (and the pull of the next step)
///
/// If the job has a table of the module's buffers (buffer_table), they come and go with the
/// weights.
///
/// Throws LifeLost from all calls that wait, on all ranks of a worker, when the manager has ended
/// this worker's life.
class ServerParallel {
 public:
  /// Trains what is attached to a mesh of this worker's ranks with this reducer. All must outlive
  /// this object. *Collective.*
  ServerParallel(parallel::Attached& attached, Client& client,
                 std::shared_ptr<PushReducer> reducer);
  /// The same for a module of a worker of one rank.
  ServerParallel(torch::nn::Module& module, Client& client);
  ServerParallel(const ServerParallel&) = delete;
  ServerParallel& operator=(const ServerParallel&) = delete;

  /// Begins a step: waits for the push of the step before, and for weights that are as new as the
  /// table promises. The step must last until `finish`.
  void begin(TrainingStep& step);
  /// The same in a loop of one's own over the work that the manager gives. *Collective.*
  void begin(const Client::Work& work, std::size_t step);
  /// The weights at a step, for evaluation: of the step that `train` returns, with all updates.
  void read(const TrainingStep& step);
  /// *Collective.*
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
  struct Step {
    Clock clock = 0;
    uint64_t view_version = 0;
    Batch batch = 0;
    bool pulls = false;  ///< the weights of the next clock come with the push
    TrainingStep* told = nullptr;
  };
  struct Pushed {
    Client::Pending weights, buffers;  ///< not started: this rank has no such table
    Step step;
  };
  /// Elements that several ranks hold, in the same order on all of them.
  struct HeldAlike {
    comm::Communicator group;
    std::vector<std::pair<std::size_t, std::size_t>> parts;  ///< shard, part
  };

  void find_held_alike();
  Client::Operation operation_of(const Step& step) const;
  Client::Pending push_buffers(double weight);
  void wait_for_push();
  void take_weights(const Client::Result& result);
  void take_block(const ClientNode::PulledBlock& block);
  void show_weights(Clock clock);
  void spread();
  bool in_lockstep() const { return client_.job().in_lanes(); }
  void agree(const std::function<void()>& body);

  Client& client_;
  std::shared_ptr<PushReducer> reducer_;
  std::unique_ptr<parallel::AttachedModule> own_;
  parallel::Attached& attached_;
  ServedBuffers buffers_;
  std::vector<HeldAlike> alike_;
  Step step_;
  std::optional<Pushed> pushed_;
  std::optional<PushOutcome> outcome_;
  std::optional<Clock> has_;  ///< the weights are those of this clock
  bool came_ = false;         ///< weights have come with a push, and are not shown yet
};

}  // namespace trireme::ps
