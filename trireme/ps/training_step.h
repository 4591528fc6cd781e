#pragma once

#include <functional>
#include <vector>

#include "trireme/ps/client.h"

namespace trireme::ps {

/// Where a worker is in its work: the batch that it is about, and the clock at which it reads and
/// writes. `train` gives one to the loop's body for each batch.
///
///   for one batch:   pull ...  compute ...  push ...   (end: a table that got no push is told so)
///
/// Every table gets one push a step, and the pushes of a step may still be under way when the next
/// one begins: what it pulls has them in.
class TrainingStep {
 public:
  /// `process`: the number of this process among those of all workers. The client must outlive it.
  TrainingStep(Client& client, uint32_t process);
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  /// The place of the batch in the data order of all epochs. Throws MisuseError when all work is
  /// done.
  Batch batch() const;
  Clock clock() const { return clock_; }
  uint64_t view_version() const { return view_version_; }

  /// What is said with the pushes of this step. `weight` is the number of samples (or tokens) whose
  /// gradients are added up in a push, `loss` the sum of their losses. Lockstep divides by the
  /// weights of all workers, the others by `divisor`. 0 stands for the weight times the number of
  /// workers: the pushes of a clock then move as far together as they do in lockstep.
  double weight = 1;
  double loss = 0;
  double divisor = 0;
  double rate = 1;  ///< a factor of the rule's learning rate

  /// A push by hand, with what is set above; `weight_of_values`: 0 if it has none. See Table::push,
  /// which is simpler.
  Client::Pending push(Client::Operation operation, double weight_of_values);

 private:
  friend class Table;
  friend const TrainingStep& train(TrainingStep& step, const std::function<void(TrainingStep&)>&);
  struct Use {
    bool pushed = false;
    Client::Pending push;  ///< the last one
  };
  void do_work(const Client::Work& work, const std::function<void(TrainingStep&)>& body);
  void begin(const Client::Work& work, size_t index);
  void end();
  void wait();
  void forget();
  Client::Operation operation(TableId table) const;
  bool is_ours(TableId table) const;
  void check_whole(TableId table, Clock clock) const;

  Client& client_;
  const uint32_t rank_;  ///< of this process in its worker
  bool works_ = false;
  Batch batch_ = 0;
  Clock clock_ = 0;
  uint64_t view_version_ = 0;
  std::vector<Use> tables_;
};

/// Calls `body` for each batch that the manager gives this worker, until all work of the job is
/// done. If the manager has ended this worker's life, or all servers have gone back to a snapshot,
/// the body ends with LifeLost, and the loop goes on with other work: let that pass, and change
/// nothing in the body that must not be done twice.
///
/// Returns the step after the last one: what is pulled there has all updates of the job.
const TrainingStep& train(TrainingStep& step, const std::function<void(TrainingStep&)>& body);

}  // namespace trireme::ps
