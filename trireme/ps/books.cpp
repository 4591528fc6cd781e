#include "trireme/ps/books.h"

#include <algorithm>
#include <utility>

#include "trireme/core/error.h"
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
    : job_(job),
      num_tasks_(tasks_of(job)),
      first_clock_(job.in_lanes() ? job.data.begin / job.workers : 0),
      snapshot_{.clock = first_clock_, .step = job.data.begin / job.workers},
      reports_written_(job.data.begin) {
  view_.ranges.resize(job.ranges);
}

template <class Archive>
void Books::fields(Archive& archive) {
  archive(records_, nodes_, view_, num_tasks_, done_, holders_, holdings_, next_clocks_,
          latest_task_, first_clock_, snapshot_, newest_order_, order_is_lost_, done_in_snapshot_,
          done_in_order_, reports_, reports_written_);
}

BooksImage Books::image() const {
  Writer writer;
  const_cast<Books*>(this)->fields(writer);
  return {writer.take()};
}

void Books::on(const BooksImage& decision) {
  Reader reader(std::string_view(decision.bytes));
  fields(reader);
  reader.finish();
}

void Books::apply(const Decision& decision) {
  ++records_;
  std::visit([&](const auto& one) { on(one); }, decision);
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

Clock Books::end_clock() const {
  return num_tasks_ == 0 ? first_clock_
                         : lane_clock(job_, batches_of(job_, num_tasks_ - 1).back()) + 1;
}

uint64_t Books::steps_done() const {
  const Task task = first_undone();
  const Batch batch = task < tasks_of(job_) ? batches_of(job_, task)[0] : job_.batches();
  return batch / job_.workers;
}

void Books::workers_changed() {
  view_changed();
  view_.workers_version = view_.version;
}

void Books::on(const LifeBegins& decision) {
  NodeRecord& record = nodes_[decision.node];
  if (record.lives) on(LifeEnds{decision.node});
  if (record.life > 0 && record.nonce != decision.nonce) record.former.insert(record.nonce);
  record.life = decision.life;
  record.nonce = decision.nonce;
  record.lives = true;
  record.leaves = false;
  record.lanes = decision.lanes;
  if (decision.node.role == Role::Server) servers_changed();
}

/// The list has no server that was dead when the last one came.
void Books::servers_changed() {
  view_.servers.clear();
  for (const auto& [id, record] : nodes_)
    if (id.role == Role::Server && record.lives)
      view_.servers[id.index] = {record.life, record.lanes};
  view_changed();
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
  for (auto& [task, holders] : holders_) std::erase(holders, worker);
  std::erase_if(holders_, [](const auto& one) { return one.second.empty(); });
}

const std::vector<uint32_t>& Books::holders(Task task) const {
  static const std::vector<uint32_t> kNobody;
  const auto found = holders_.find(task);
  return found == holders_.end() ? kNobody : found->second;
}

void Books::on(const ServerLeaves& decision) {
  nodes_[{Role::Server, decision.server}].leaves = true;
}

void Books::on(const RangeAssigned& decision) {
  Assignment& range = view_.ranges.at(decision.range);
  const bool head_changed =
      !range.chain.empty() && range.chain[0] != decision.assignment.chain.at(0);
  order_is_lost_ = order_is_lost_ || (head_changed && view_.snapshot.snapshot != 0);
  range = decision.assignment;
  view_changed();
}

void Books::on(const RolledBack& decision) {
  ++view_.generation;
  view_.restored = snapshot_;
  view_.ranges = decision.ranges;
  view_.snapshot = {};
  order_is_lost_ = false;
  done_ = done_in_snapshot_;
  view_.over = view_.over && all_done();  // else there is work again
  latest_task_ = first_undone();
  holders_.clear();
  holdings_.clear();
  for (auto& [id, record] : nodes_)
    if (id.role == Role::Worker) record.lives = false;
  view_.workers.clear();
  if (job_.in_lanes()) {
    next_clocks_.clear();
    first_clock_ = snapshot_.clock;
  }
  workers_changed();
}

void Books::on(const TaskGiven& decision) {
  std::vector<uint32_t>& holders = holders_[decision.task];
  if (std::ranges::find(holders, decision.worker) == holders.end())
    holders.push_back(decision.worker);
  holdings_[decision.worker] = {decision.task, decision.clock};
  latest_task_ = std::max(latest_task_, decision.task + 1);
  Clock& next = next_clocks_[decision.worker];
  next = std::max(next, decision.clock + batches_of(job_, decision.task).size());
  const Life life = nodes_[{Role::Worker, decision.worker}].life;
  const auto active = std::ranges::find(view_.workers, decision.worker, &ActiveWorker::worker);
  if (active != view_.workers.end() && active->life == life) return;
  if (active != view_.workers.end()) view_.workers.erase(active);
  view_.workers.push_back({decision.worker, life, decision.clock});
  workers_changed();
}

void Books::on(const TaskDone& decision) {
  done_.insert(decision.task);
  holders_.erase(decision.task);
  const auto holding = holdings_.find(decision.worker);
  if (holding != holdings_.end() && holding->second.task == decision.task) holdings_.erase(holding);
}

void Books::on(const EndsAt& decision) {
  num_tasks_ = std::min(num_tasks_, std::max(decision.task, latest_task_));
}

void Books::on(const JobOver&) {
  view_.over = true;
  view_changed();
}

/// Work that is done again, after a return to a snapshot, is reported again.
void Books::on(const Reported& decision) {
  if (decision.batch >= reports_written_) reports_[decision.batch] = decision.text;
}

void Books::on(const ReportsWritten& decision) {
  reports_written_ = decision.before;
  reports_.erase(reports_.begin(), reports_.lower_bound(decision.before));
}

void Books::on(const WorkerIdle& decision) {
  holdings_.erase(decision.worker);
  if (std::erase_if(view_.workers, [&](const ActiveWorker& active) {
        return active.worker == decision.worker;
      }) > 0)
    workers_changed();
}

void Books::on(const SnapshotGivenUp&) {
  view_.snapshot = {};
  order_is_lost_ = false;
  view_changed();
}

void Books::on(const SnapshotOrdered& decision) {
  view_.snapshot = decision.order;
  newest_order_ = decision.order.snapshot;
  order_is_lost_ = false;
  view_changed();
  done_in_order_ = done_;
  if (!job_.in_lanes()) return;
  done_in_order_ = {};
  for (Task task = 0; task < num_tasks_; ++task) {
    if (lane_clock(job_, batches_of(job_, task).back()) >= decision.order.clock) break;
    done_in_order_.insert(task);
  }
}

void Books::on(const SnapshotComplete& decision) {
  core::check(decision.snapshot == view_.snapshot.snapshot,
              "snapshot {} is complete, but {} is open", decision.snapshot,
              view_.snapshot.snapshot);
  snapshot_ = view_.snapshot;
  done_in_snapshot_ = done_in_order_;
  view_.snapshot = {};
  order_is_lost_ = false;
  view_changed();
}

}  // namespace trireme::ps
