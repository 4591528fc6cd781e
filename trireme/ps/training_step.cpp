#include "trireme/ps/training_step.h"

#include <cmath>
#include <utility>

namespace trireme::ps {

TrainingStep::TrainingStep(Client& client, uint32_t process)
    : client_(client),
      rank_(process % client.job().worker_ranks),
      tables_(client.job().tables.size()) {}

Batch TrainingStep::batch() const {
  core::check(works_, "there is no batch: this worker has no work now");
  return batch_;
}

void TrainingStep::begin(const Client::Work& work, size_t index) {
  works_ = true;
  batch_ = work.batches[index];
  clock_ = work.clock + index;
  view_version_ = work.view_version;
  weight = rate = 1;
  loss = divisor = 0;
  for (Use& use : tables_) use.pushed = false;
}

bool TrainingStep::is_ours(TableId table) const {
  return client_.job().tables[table].rank == rank_;
}

/// A range takes the clocks of a worker one after the other, so none may be left out. In lockstep
/// all workers would wait for it.
void TrainingStep::end() {
  for (TableId table = 0; table < tables_.size(); ++table) {
    if (!is_ours(table) || tables_[table].pushed) continue;
    Client::Operation nothing = operation(table);
    nothing.push = true;
    (void)push(std::move(nothing), 0);
  }
}

/// Until all pushes are acknowledged.
void TrainingStep::wait() {
  for (Use& use : tables_)
    if (const auto last = std::exchange(use.push, {}); last.started()) (void)client_.wait(last);
}

/// What was under way is gone with the worker's life.
void TrainingStep::forget() {
  works_ = false;
  for (Use& use : tables_) use = {};
}

Client::Operation TrainingStep::operation(TableId table) const {
  return {.table = table, .clock = clock_, .view_version = view_version_};
}

/// The push before must be there: after a server's death the two could otherwise come in the wrong
/// order, and the later one would be refused.
Client::Pending TrainingStep::push(Client::Operation operation, double weight_of_values) {
  const TableConfig& config = client_.job().tables[operation.table];
  Use& use = tables_[operation.table];
  core::check(works_, "table '{}': there is no work to push for; push in the body of the loop",
              config.name);
  core::check(is_ours(operation.table), "table '{}': only rank {} of each worker pushes to it",
              config.name, config.rank);
  core::check(!use.pushed,
              "table '{}' was pushed to at clock {} already: add the gradients up, and push once",
              config.name, clock_);
  core::check(weight >= 0 && divisor >= 0 && std::isfinite(weight + divisor + rate),
              "table '{}': a push has weight {}, divisor {} and rate {}; all must be finite, and "
              "weight and divisor not below 0",
              config.name, weight, divisor, rate);
  if (use.push.started()) (void)client_.wait(std::exchange(use.push, {}));
  operation.batch = batch_;
  operation.weight = weight_of_values;
  operation.loss = weight_of_values > 0 ? loss : 0;
  operation.rate = rate;
  operation.divisor = divisor > 0 ? divisor : weight > 0 ? weight * client_.job().workers : 1;
  use.push = client_.start(std::move(operation));
  use.pushed = true;
  return use.push;
}

/// Lockstep shows nothing of a clock before all tables have it: who waits for that before it has
/// pushed to all of them waits for itself.
void TrainingStep::check_whole(TableId table, Clock clock) const {
  const JobConfig& job = client_.job();
  if (!works_ || clock != clock_ || !job.in_lockstep(table)) return;
  for (TableId other = 0; other < tables_.size(); ++other)
    core::check(!job.in_lockstep(other) || !is_ours(other) || tables_[other].pushed,
                "table '{}' cannot be read after clock {} before table '{}' has its push, too: "
                "push to it first, then wait",
                job.tables[table].name, clock, job.tables[other].name);
}

void TrainingStep::do_work(const Client::Work& work,
                           const std::function<void(TrainingStep&)>& body) {
  for (size_t i = 0; i < work.batches.size(); ++i) {
    begin(work, i);
    body(*this);
    end();
  }
  wait();
  client_.done(work);
}

const TrainingStep& train(TrainingStep& step, const std::function<void(TrainingStep&)>& body) {
  core::check(step.rank_ == 0,
              "rank {} of a worker gets no work: its rank 0 does, and passes it on (see Client)",
              step.rank_);
  for (;;) {
    try {
      const auto work = step.client_.next();
      if (!work) break;
      step.do_work(*work, body);
    } catch (const LifeLost&) {
      step.forget();
    }
  }
  step.works_ = false;
  step.clock_ = step.client_.end_clock();
  return step;
}

}  // namespace trireme::ps
