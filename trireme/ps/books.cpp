#include "trireme/ps/books.h"

#include <algorithm>
#include <utility>

#include "trireme/core/hash.h"
#include "trireme/ps/archive.h"
#include "trireme/ps/data_order.h"

namespace trireme::ps {

namespace {

template <size_t... Kinds>
bool read_decision(uint8_t kind, Reader& reader, Decision& decision,
                   std::index_sequence<Kinds...>) {
  return ((kind == Kinds && (reader(decision.emplace<Kinds>()), true)) || ...);
}

Decision decode_decision(std::string_view bytes) {
  Reader reader(bytes);
  uint8_t kind = 0;
  reader(kind);
  Decision decision;
  if (!read_decision(kind, reader, decision,
                     std::make_index_sequence<std::variant_size_v<Decision>>{}))
    throw CommError(fmt::format("has a record of the unknown kind {}", kind));
  reader.finish();
  return decision;
}

constexpr size_t kRecordHead = sizeof(uint32_t) + sizeof(uint64_t);

}  // namespace

std::string encode_record(const Decision& decision) {
  Writer body;
  body(static_cast<uint8_t>(decision.index()));
  std::visit([&](const auto& fields) { body(fields); }, decision);
  const std::string bytes = body.take();
  std::string record;
  net::put(record, static_cast<uint32_t>(bytes.size()));
  net::put(record, core::hash64(bytes));
  return record + bytes;
}

LogContent read_records(std::string_view log) {
  LogContent content;
  while (log.size() >= kRecordHead) {
    net::ByteReader head(log.substr(0, kRecordHead));
    const auto bytes = head.number<uint32_t>();
    const auto checksum = head.number<uint64_t>();
    if (bytes > log.size() - kRecordHead) break;
    const std::string_view body = log.substr(kRecordHead, bytes);
    if (core::hash64(body) != checksum) break;
    content.decisions.push_back(decode_decision(body));
    content.bytes += kRecordHead + bytes;
    log.remove_prefix(kRecordHead + bytes);
  }
  return content;
}

Books::Books(const JobConfig& job)
    : job_(job), tasks_(tasks_of(job)), done_in_snapshot_(tasks_.size()) {
  view_.ranges.resize(job.ranges);
  count_tasks();
}

void Books::apply(const Decision& decision) {
  ++records_;
  std::visit([&](const auto& fields) { on(fields); }, decision);
}

const Books::NodeRecord* Books::node(NodeId id) const {
  const auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : &found->second;
}

bool Books::lives(Member server) const {
  const NodeRecord* record = node({Role::Server, server.index});
  return record && record->lives && record->life == server.life;
}

std::optional<Books::Holding> Books::holding(uint32_t worker) const {
  const auto found = holdings_.find(worker);
  if (found == holdings_.end()) return {};
  return found->second;
}

bool Books::is_active(uint32_t worker) const {
  return std::ranges::find(view_.workers, worker, &ActiveWorker::worker) != view_.workers.end();
}

Clock Books::next_clock(uint32_t worker) const {
  const auto found = next_clocks_.find(worker);
  return found == next_clocks_.end() ? 0 : found->second;
}

Clock Books::latest_clock() const {
  Clock latest = first_clock_;
  for (const auto& [worker, clock] : next_clocks_) latest = std::max(latest, clock);
  return latest;
}

void Books::workers_changed() {
  view_changed();
  view_.workers_version = view_.version;
}

void Books::on(const LifeBegins& decision) {
  NodeRecord& record = nodes_[decision.node];
  if (record.lives) on(LifeEnds{decision.node});
  if (record.life > 0) record.former.insert(record.nonce);
  record.life = decision.life;
  record.nonce = decision.nonce;
  record.lives = true;
  record.leaves = false;
}

/// In lanes nobody else can do the work of a worker: it stays among the active ones, and the others
/// wait for its next life.
void Books::on(const LifeEnds& decision) {
  nodes_[decision.node].lives = false;
  if (decision.node.role != Role::Worker) return;
  release_tasks(decision.node.index);
  if (!job_.in_lanes()) on(WorkerIdle{decision.node.index});
}

void Books::release_tasks(uint32_t worker) {
  holdings_.erase(worker);
  for (TaskRecord& task : tasks_) std::erase(task.holders, worker);
}

void Books::on(const ServerLeaves& decision) {
  nodes_[{Role::Server, decision.server}].leaves = true;
}

void Books::on(const RangeAssigned& decision) {
  view_.ranges.at(decision.range) = decision.assignment;
  view_changed();
}

void Books::on(const RolledBack& decision) {
  ++view_.generation;
  view_.restored = snapshot_;
  view_.ranges = decision.ranges;
  view_.snapshot = {};
  for (size_t task = 0; task < tasks_.size(); ++task) tasks_[task] = {done_in_snapshot_[task], {}};
  count_tasks();
  holdings_.clear();
  for (auto& [id, record] : nodes_)
    if (id.role == Role::Worker) record.lives = false;
  view_.workers.clear();
  if (job_.in_lanes()) {
    next_clocks_.clear();
    first_clock_ = snapshot_clock_;
  }
  workers_changed();
}

void Books::on(const TaskGiven& decision) {
  std::vector<uint32_t>& holders = tasks_.at(decision.task).holders;
  if (std::ranges::find(holders, decision.worker) == holders.end())
    holders.push_back(decision.worker);
  holdings_[decision.worker] = {decision.task, decision.clock};
  Clock& next = next_clocks_[decision.worker];
  next = std::max(next, decision.clock + batches_of(job_, decision.task).size());
  const Life life = nodes_[{Role::Worker, decision.worker}].life;
  const auto active = std::ranges::find(view_.workers, decision.worker, &ActiveWorker::worker);
  if (active != view_.workers.end() && active->life == life) return;
  if (active != view_.workers.end()) view_.workers.erase(active);
  view_.workers.push_back({decision.worker, life, decision.clock});
  workers_changed();
}

void Books::count_tasks() {
  undone_ = static_cast<uint64_t>(std::ranges::count(tasks_, false, &TaskRecord::done));
  first_undone_ =
      static_cast<Task>(std::ranges::find(tasks_, false, &TaskRecord::done) - tasks_.begin());
}

void Books::on(const TaskDone& decision) {
  TaskRecord& task = tasks_.at(decision.task);
  undone_ -= task.done ? 0 : 1;
  task.done = true;
  task.holders.clear();
  while (first_undone_ < tasks_.size() && tasks_[first_undone_].done) ++first_undone_;
}

void Books::on(const WorkerIdle& decision) {
  holdings_.erase(decision.worker);
  if (std::erase_if(view_.workers, [&](const ActiveWorker& active) {
        return active.worker == decision.worker;
      }) > 0)
    workers_changed();
}

void Books::on(const SnapshotOrdered& decision) {
  view_.snapshot = decision.order;
  newest_order_ = decision.order.snapshot;
  view_changed();
  done_in_order_.assign(tasks_.size(), false);
  for (size_t task = 0; task < tasks_.size(); ++task)
    done_in_order_[task] =
        job_.in_lanes() ? lane_clock(job_, batches_of(job_, task).back()) < decision.order.clock
                        : tasks_[task].done;
}

void Books::on(const SnapshotComplete& decision) {
  snapshot_ = decision.snapshot;
  snapshot_clock_ = view_.snapshot.clock;
  done_in_snapshot_ = done_in_order_;
  view_.snapshot = {};
  view_changed();
}

}  // namespace trireme::ps
