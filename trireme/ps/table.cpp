#include "trireme/ps/table.h"

#include <cstring>
#include <utility>

#include "trireme/ps/values.h"

namespace trireme::ps {

namespace {

const char* name_of(ValueType type) {
  return type == ValueType::Float32 ? "float32" : "float64";
}

TableId find_table(const JobConfig& job, const std::string& name) {
  std::string all;
  for (TableId table = 0; table < job.tables.size(); ++table) {
    if (job.tables[table].name == name) return table;
    all += fmt::format("{}'{}'", table == 0 ? "" : ", ", job.tables[table].name);
  }
  throw MisuseError(fmt::format("there is no table '{}': job '{}' has {}", name, job.name, all));
}

/// Adds up the rows of each key.
template <class T>
Payload sum_rows(const Keys& keys, const T* rows, size_t elems) {
  const auto sum = std::make_shared<std::vector<T>>(keys.distinct().size() * elems);
  for (size_t i = 0; i < keys.size(); ++i) {
    T* to = sum->data() + keys.places()[i] * elems;
    for (size_t k = 0; k < elems; ++k) to[k] += rows[i * elems + k];
  }
  return {sum, {reinterpret_cast<const char*>(sum->data()), sum->size() * sizeof(T)}};
}

}  // namespace

Table::Table(Client& client, const std::string& name)
    : client_(&client),
      table_(find_table(client.job(), name)),
      config_(&client.job().tables[table_]) {}

void Table::check_call(const Call& call) const {
  const bool dense = config_->kind == TableKind::Dense;
  core::check(!dense || !call.keys, "table '{}' is dense, so it has no keys: give values alone",
              config_->name);
  core::check(dense || call.keys, "table '{}' is sparse: give the keys of the rows, too",
              config_->name);
  const size_t elems = dense ? config_->elems : call.keys->size() * config_->elems;
  for (const ConstNumbers* numbers : {call.sums, static_cast<const ConstNumbers*>(call.to)}) {
    if (!numbers) continue;
    core::check(numbers->type() == config_->type, "table '{}' holds {}, and the array {}",
                config_->name, name_of(config_->type), name_of(numbers->type()));
    core::check(
        numbers->size() == elems, "table '{}': the array has {} numbers, but {} have {}",
        config_->name, numbers->size(),
        dense ? std::string("its values") : fmt::format("the rows of {} keys", call.keys->size()),
        elems);
  }
}

/// What is pushed: the caller may go on with its array. Servers of this host read a dense table's
/// copy where it lies; rows are copied, range by range, when the operation starts.
Payload Table::summed(const Call& call) const {
  const size_t bytes = call.sums->size() * bytes_of(config_->type);
  if (!call.keys) {
    const auto memory = client_->arena()->take(bytes);
    std::memcpy(memory.get(), call.sums->data(), bytes);
    return {memory, {static_cast<const char*>(memory.get()), bytes}};
  }
  if (!call.keys->has_repeats())
    return {nullptr, {static_cast<const char*>(call.sums->data()), bytes}};
  if (config_->type == ValueType::Float32)
    return sum_rows(*call.keys, static_cast<const float*>(call.sums->data()), config_->elems);
  return sum_rows(*call.keys, static_cast<const double*>(call.sums->data()), config_->elems);
}

Client::Operation Table::operation(const TrainingStep& step, const Call& call) const {
  check_call(call);
  Client::Operation operation = step.operation(table_);
  operation.push = call.sums != nullptr;
  operation.pull = call.to != nullptr;
  operation.key_check = Client::Operation::KeyCheck::Done;
  if (call.keys) operation.keys = call.keys->distinct();
  if (call.only_changes) operation.keeper = call.to->data();
  return operation;
}

Table::Pending Table::pending(const TrainingStep& step, const Call& call,
                              Client::Pending started) const {
  Pending pending;
  pending.client_ = client_;
  pending.step_ = &step;
  pending.table_ = table_;
  pending.clock_ = step.clock();
  pending.reads_next_clock_ = call.sums && call.to;
  pending.pending_ = std::move(started);
  pending.only_changes_ = call.only_changes;
  if (call.to) pending.to_ = static_cast<char*>(call.to->data());
  if (call.to && call.keys && call.keys->has_repeats()) pending.places_ = call.keys->places();
  return pending;
}

Table::Pending Table::start(const TrainingStep& step, const Call& call) const {
  return pending(step, call, client_->start(operation(step, call)));
}

Table::Pending Table::start_push(TrainingStep& step, const Call& call) const {
  Client::Operation push = operation(step, call);
  if (step.weight != 0) push.values = summed(call);
  return pending(step, call, step.push(std::move(push), step.weight));
}

Table::Pending Table::push(TrainingStep& step, ConstNumbers sums) const {
  return start_push(step, {.sums = &sums});
}

Table::Pending Table::push(TrainingStep& step, const Keys& keys, ConstNumbers sums) const {
  return start_push(step, {.keys = &keys, .sums = &sums});
}

Table::Pending Table::pull(const TrainingStep& step, Numbers to) const {
  return start(step, {.to = &to});
}

Table::Pending Table::pull(const TrainingStep& step, const Keys& keys, Numbers to) const {
  return start(step, {.keys = &keys, .to = &to});
}

Table::Pending Table::pull_changes(const TrainingStep& step, Numbers to) const {
  return start(step, {.to = &to, .only_changes = true});
}

Table::Pending Table::push_pull(TrainingStep& step, ConstNumbers sums, Numbers to) const {
  return start_push(step, {.sums = &sums, .to = &to});
}

Table::Pending Table::push_pull(TrainingStep& step, const Keys& keys, ConstNumbers sums,
                                Numbers to) const {
  return start_push(step, {.keys = &keys, .sums = &sums, .to = &to});
}

Table::Outcome Table::Pending::wait() {
  core::check(pending_.started(), "there is nothing to wait for: an operation is waited for once");
  if (reads_next_clock_) step_->check_whole(table_, clock_);
  const Client::Result result = client_->wait(std::exchange(pending_, {}));
  const TableConfig& config = client_->job().tables[table_];
  const size_t width = bytes_of(config.type), row_bytes = config.elems * width;
  if (to_) {
    for (const ClientNode::PulledBlock& block : result.blocks)
      copy_bytes(block.values.view(), to_ + block.begin * width);
    if (only_changes_) client_->has_kept(table_, to_, result.blocks);
    if (places_.empty()) result.copy_rows(to_, row_bytes);
    if (!places_.empty()) {
      const std::string rows = result.values();
      for (size_t i = 0; i < places_.size(); ++i)
        std::memcpy(to_ + i * row_bytes, rows.data() + places_[i] * row_bytes, row_bytes);
    }
  }
  return {.missed = result.missed, .repeated = result.repeated, .totals = result.totals};
}

}  // namespace trireme::ps
