#include "sim/sim_worker.h"

#include <fmt/format.h>

#include <memory>
#include <stdexcept>

#include "trireme/ps/data_order.h"
#include "trireme/ps/values.h"

namespace trireme::sim {

using ps::TableId;

std::vector<double> gradient_of(ps::Batch batch, const std::vector<double>& weights) {
  std::vector<double> gradient(weights.size());
  for (size_t i = 0; i < weights.size(); ++i)
    gradient[i] = ps::first_value(7, 1, batch, i) * weights[i] + ps::first_value(7, 2, batch, i);
  return gradient;
}

double weight_of(ps::Batch batch) {
  return 1.0 + static_cast<double>(batch % 3);
}

SimWorker::SimWorker(uint32_t index, const Scenario& scenario, ps::Environment& environment,
                     History& history, uint64_t& repeated)
    : ClientNode(index, scenario.job, environment),
      scenario_(scenario),
      history_(history),
      repeated_(repeated) {
  // A worker that computes does not look up: what it computed it then wants to push.
  on_begin = [this] {
    if (!compute_until_) ask({});
  };
  on_end = [this] { ask_at_.reset(), open_ = 0, ended_ = false; };
}

void SimWorker::tick() {
  ClientNode::tick();
  const Time now = environment_.now();
  if (compute_until_ && now >= *compute_until_) {
    compute_until_.reset();
    if (may_start())
      push();
    else if (has_begun())  // otherwise it asks when it has
      ask({});
  }
  if (ask_at_ && now >= *ask_at_) {
    ask_at_.reset();
    ask({});
  }
}

void SimWorker::ask(std::optional<ps::Task> done) {
  ask_task(done, [this](const ps::TaskReply& reply) { on_task(reply); });
}

void SimWorker::on_task(const ps::TaskReply& reply) {
  if (reply.answer == ps::Answer::Finished && !ended_) read_the_end();
  if (reply.answer != ps::Answer::Work) {
    ask_at_ = environment_.now() + std::chrono::milliseconds(10);
    return;
  }
  task_ = reply.task;
  batches_ = ps::batches_of(job_, task_);
  step_ = 0;
  first_clock_ = reply.clock;
  task_view_ = reply.view_version;
  pull();
}

/// Every worker reads what all have made, also one that came back when no work was left.
void SimWorker::read_the_end() {
  const auto open = std::make_shared<size_t>(job_.tables.size());
  for (TableId table = 0; table < job_.tables.size(); ++table) {
    Operation op = operation(table);
    op.clock = job_.in_lockstep(table) ? job_.batches() / job_.workers : 0;
    op.pull = true;
    start(op, [this, open](const Result& result) {
      if (!result.error.empty()) throw std::runtime_error(result.error);
      if (--*open == 0) ended_ = true;
    });
  }
}

ps::ClientNode::Operation SimWorker::operation(TableId table) const {
  Operation op{.table = table, .clock = clock(), .view_version = task_view_};
  if (table == kCounters)
    for (uint64_t key = 0; key < kKeys; ++key) op.keys.push_back(key);
  return op;
}

/// Lockstep: what the servers say about a clock is what its batches were.
void SimWorker::check_totals(TableId table, ps::Clock clock, const Result& result) const {
  if (table != kWeights || !job_.in_lockstep(table)) return;
  double weight = 0;
  for (ps::Batch batch = clock * job_.workers; batch < (clock + 1) * job_.workers; ++batch)
    weight += weight_of(batch);
  if (result.totals.weight != weight)
    throw std::runtime_error(
        fmt::format("worker {}: clock {} has weight {}, and the servers say {}", id_.index, clock,
                    weight, result.totals.weight));
}

void SimWorker::pull() {
  open_ = job_.tables.size();
  began_ = environment_.now();
  for (TableId table = 0; table < job_.tables.size(); ++table) {
    Operation op = operation(table);
    op.pull = true;
    start(op, [this, table](const Result& result) {
      if (!result.error.empty()) throw std::runtime_error(result.error);
      pulled_[table] = result.values();
      if (--open_ == 0) on_pulled();
    });
  }
}

void SimWorker::on_pulled() {
  write_down_read();
  const bool slow = id_.index < scenario_.slow_workers;
  compute_until_ = environment_.now() + scenario_.step * (slow ? 8 : 1);
}

void SimWorker::write_down_read() {
  Read read{.worker = id_.index,
            .life = life_,
            .clock = clock(),
            .generation = view_.generation,
            .begin = began_,
            .end = environment_.now()};
  const std::vector<double> ledger = ps::values_of<double>(pulled_[kLedger]);
  const size_t batches = job_.batches();
  for (size_t range = 0; range < job_.ranges; ++range)
    read.ledger.emplace_back(ledger.begin() + static_cast<std::ptrdiff_t>(range * batches),
                             ledger.begin() + static_cast<std::ptrdiff_t>((range + 1) * batches));
  for (const float count : ps::values_of<float>(pulled_[kCounters])) read.counters.push_back(count);
  history_.reads.push_back(std::move(read));
}

/// Each lane of lockstep pushes as many as there are lanes: the mean is then 1.
ps::ClientNode::Operation SimWorker::push_of(TableId table) const {
  Operation op = operation(table);
  op.push = true;
  op.batch = batches_[step_];
  const double one = job_.in_lockstep(table) ? job_.workers : 1;
  if (table == kLedger) {
    std::vector<double> values(job_.ranges * job_.batches());
    for (size_t range = 0; range < job_.ranges; ++range)
      values[range * job_.batches() + op.batch] = one;
    op.values = ps::bytes_of_values<double>(values);
  } else if (table == kCounters) {
    std::vector<float> values(kKeys);
    values[op.batch % kKeys] = static_cast<float>(one);
    op.values = ps::bytes_of_values<float>(values);
  } else {
    op.weight = weight_of(op.batch);
    auto gradient = gradient_of(op.batch, ps::values_of<double>(pulled_.at(kWeights)));
    for (double& value : gradient) value *= op.weight;
    op.values = ps::bytes_of_values<double>(gradient);
  }
  return op;
}

void SimWorker::push() {
  open_ = job_.tables.size();
  began_ = environment_.now();
  write_ = history_.writes.size();
  history_.writes.push_back({.worker = id_.index,
                             .life = life_,
                             .clock = clock(),
                             .batch = batches_[step_],
                             .generation = view_.generation,
                             .begin = began_});
  std::vector<Operation> ops;
  for (TableId table = 0; table < job_.tables.size(); ++table) {
    ops.push_back(push_of(table));
    ops.back().pull = scenario_.push_pull && step_ + 1 < batches_.size();
  }
  for (const Operation& op : ops) {
    start(op, [this, table = op.table](const Result& result) {
      if (!result.error.empty()) throw std::runtime_error(result.error);
      if (scenario_.push_pull && step_ + 1 < batches_.size()) check_totals(table, clock(), result);
      repeated_ += result.repeated;
      pulled_[table] = result.values();
      if (--open_ == 0) on_pushed();
    });
  }
}

void SimWorker::on_pushed() {
  history_.writes[write_].end = environment_.now();
  const bool has_read = scenario_.push_pull && step_ + 1 < batches_.size();
  if (++step_ == batches_.size()) return ask(task_);
  if (has_read) return on_pulled();
  pull();
}

}  // namespace trireme::sim
