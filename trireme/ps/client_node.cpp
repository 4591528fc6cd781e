#include "trireme/ps/client_node.h"

#include <algorithm>
#include <cstring>

#include "trireme/core/error.h"
#include "trireme/ps/key_lists.h"
#include "trireme/ps/keys.h"
#include "trireme/ps/values.h"

namespace trireme::ps {

void ClientNode::Result::copy_rows(void* to, size_t row_bytes) const {
  for (const PulledRows& one : rows) {
    const char* from = one.values.data();
    for (const uint32_t place : one.places) {
      std::memcpy(static_cast<char*>(to) + place * row_bytes, from, row_bytes);
      from += row_bytes;
    }
  }
}

std::string ClientNode::Result::values() const {
  std::string all;
  for (const PulledBlock& block : blocks) all += block.values.view();
  size_t num_rows = 0, bytes = 0;
  for (const PulledRows& one : rows) {
    num_rows += one.places.size();
    bytes += one.values.size();
  }
  if (num_rows == 0) return all;
  all.resize(bytes);
  copy_rows(all.data(), bytes / num_rows);
  return all;
}

void ClientNode::check(const Operation& operation) const {
  core::check(operation.table < job_.tables.size(), "there is no table {}; the job has {}",
              operation.table, job_.tables.size());
  const TableConfig& config = job_.tables[operation.table];
  const size_t elems =
      config.kind == TableKind::Dense ? config.elems : operation.keys.size() * config.elems;
  const bool is_empty = operation.weight == 0 && operation.values.empty();
  core::check(
      !operation.push || is_empty || operation.values.size() == elems * bytes_of(config.type),
      "a push to table '{}' has {} bytes, but {} elements have {}", config.name,
      operation.values.size(), elems, elems * bytes_of(config.type));
  core::check(config.kind == TableKind::Sparse || operation.keys.empty(),
              "table '{}' is dense, but the request names {} keys", config.name,
              operation.keys.size());
  for (const RangeId range : operation.ranges)
    core::check(range < job_.ranges, "there is no range {}; the job has {}", range, job_.ranges);
  if (operation.key_check == Operation::KeyCheck::Done) return;
  const auto twice = first_repeated(operation.keys);
  core::check(!twice, "key {} of table '{}' is named twice: add its rows up, or use Keys",
              twice.value_or(0), config.name);
}

void ClientNode::start(Operation operation, OnResult on_result) {
  check(operation);
  const TableConfig& config = job_.tables[operation.table];
  const uint64_t number = next_number_++;
  InFlight& op = operations_[number];
  op = {std::move(operation), std::move(on_result), environment_.now()};
  if (config.kind == TableKind::Dense)
    cut_dense(op);
  else
    cut_sparse(op);
  const bool is_sparse = config.kind == TableKind::Sparse;
  if (op.parts.empty()) return complete(number);
  for (auto& [range, part] : op.parts) {
    part.request.id = {.worker = id_.index / job_.worker_ranks,
                       .life = life_,
                       .table = op.operation.table,
                       .clock = op.operation.clock,
                       .number = number,
                       .range = range};
    part.request.view_version = op.operation.view_version;
    part.request.push = op.operation.push;
    part.request.pull = op.operation.pull;
    part.request.batch = op.operation.batch;
    part.request.weight = op.operation.weight;
    part.request.loss = op.operation.loss;
    part.request.divisor = op.operation.divisor;
    part.request.rate = op.operation.rate;
    const LastRead& last = last_reads_[{op.operation.table, range}];
    part.request.delta = op.operation.keeper && op.operation.keeper == last.keeper;
    part.request.read_version = last.version;
    if (is_sparse) gather_rows(op, part);
    send_part(part);  // its server begins while the next is put together
  }
  if (is_sparse) op.operation.values = {};
}

void ClientNode::cut_dense(InFlight& op) {
  const Operation& operation = op.operation;
  const size_t width = bytes_of(job_.tables[operation.table].type);
  std::vector<RangeId> ranges = operation.ranges;
  for (RangeId range = 0; operation.ranges.empty() && range < job_.ranges; ++range)
    ranges.push_back(range);
  for (const RangeId range : ranges) {
    Part& part = op.parts[range];
    if (!operation.push || operation.values.empty()) continue;
    const Block block = block_of(job_, operation.table, range);
    part.request.values =
        filtered(op, range, operation.values.slice(block.begin * width, block.elems * width));
  }
}

/// What is pushed, as it travels. A batch that is pushed again, in another life, goes without what
/// this life's earlier pushes have lost.
Payload ClientNode::filtered(const InFlight& op, RangeId range, Payload values) {
  const TableConfig& config = job_.tables[op.operation.table];
  if (!config.filter || values.empty()) return values;
  const std::vector<float> numbers = values_of<float>(values.view());
  std::vector<float>& residual = residuals_[{op.operation.table, range}];
  if (config.kind == TableKind::Dense) residual.resize(numbers.size());
  const uint64_t stream = (uint64_t{id_.index} << 32 | op.operation.table) * 1000003 + range;
  return config.filter->encode(numbers, residual, {stream, op.operation.batch});
}

/// Deals the keys to their ranges. A push goes to every range, even without a row for it: the range
/// must learn of the clock.
void ClientNode::cut_sparse(InFlight& op) {
  const Operation& operation = op.operation;
  const auto count = static_cast<uint32_t>(operation.keys.size());
  std::vector<RangeId> ranges(count);
  std::vector<uint32_t> counts(job_.ranges);
  for (uint32_t row = 0; row < count; ++row)
    ++counts[ranges[row] = range_of(operation.keys[row], job_.ranges)];
  std::vector<Part*> parts(job_.ranges);
  for (RangeId range = 0; range < job_.ranges; ++range) {
    if (!operation.push && counts[range] == 0) continue;
    parts[range] = &op.parts[range];
    parts[range]->rows.reserve(counts[range]);
    parts[range]->request.keys.reserve(counts[range]);
  }
  for (uint32_t row = 0; row < count; ++row) {
    Part& part = *parts[ranges[row]];
    part.rows.push_back(row);
    part.request.keys.push_back(operation.keys[row]);
  }
}

/// Puts together what a range is sent.
void ClientNode::gather_rows(const InFlight& op, Part& part) {
  const TableConfig& config = job_.tables[op.operation.table];
  const size_t row_bytes = config.elems * bytes_of(config.type);
  if (op.operation.push && !op.operation.values.empty() && !part.rows.empty()) {
    const size_t bytes = part.rows.size() * row_bytes;
    const std::shared_ptr<void> memory = take_passing(*memory_, bytes);
    char* to = static_cast<char*>(memory.get());
    for (const uint32_t row : part.rows) {
      std::memcpy(to, op.operation.values.data() + row * row_bytes, row_bytes);
      to += row_bytes;
    }
    part.request.values =
        filtered(op, part.request.id.range, {memory, {static_cast<char*>(memory.get()), bytes}});
  }
  name_keys(part);
}

/// If these keys went to the range last time, their name is enough.
void ClientNode::name_keys(Part& part) {
  constexpr size_t kWorth = 8;
  if (part.request.keys.size() < kWorth) return;
  part.request.key_list = name_of_keys(part.request.keys);
  uint64_t& last = sent_keys_[{part.request.id.table, part.request.id.range}];
  if (std::exchange(last, part.request.key_list) == part.request.key_list)
    part.keys = std::exchange(part.request.keys, {});
}

// When a part is sent again. What takes long may only wait behind much else on a slow link: sent
// twice, it would wait twice as long. So what a stream has taken that is still open is left to it
// for many times as long as anything else, each time for twice as long: a stream loses nothing, but
// a server may have passed over what it did not expect.

Time ClientNode::patience() const {
  constexpr int kMostTimes = 16;
  return std::clamp(2 * usual_, job_.timing.retry, kMostTimes * job_.timing.retry);
}

bool ClientNode::is_due(const Part& part) const {
  constexpr int kTimesIfOpen = 16, kMostDoublings = 6;
  const Time now = environment_.now();
  if (part.done) return false;
  if (part.way == 0) return now >= part.again_at;
  if (!environment_.is_open(part.way)) return true;
  const Time least = kTimesIfOpen * job_.timing.retry, most = least * (1 << kMostDoublings);
  const int doublings = std::min(part.times_sent - 1, kMostDoublings);
  return now - part.last_sent_at >= std::max(least * (1 << doublings), std::min(2 * usual_, most));
}

void ClientNode::send_part(Part& part) {
  const Time now = environment_.now();
  const bool may_have_arrived = part.way != 0 && environment_.is_open(part.way);
  if (!may_have_arrived) {
    part.sent_at = now;
    part.times_sent = 0;
  }
  ++part.times_sent;
  part.last_sent_at = now;
  part.again_at = now + patience();
  part.way = 0;
  if (view_.ranges.empty()) return;
  const Assignment& assignment = view_.ranges[part.request.id.range];
  if (assignment.chain.empty()) return;
  part.request.epoch = assignment.epoch;
  const NodeId head{Role::Server, assignment.chain[0].index};
  send_to(head, part.request);
  part.way = way_to(head, part.request);
}

std::string ClientNode::waiting_for() const {
  if (operations_.empty()) return {};
  const InFlight& op = operations_.begin()->second;
  std::string ranges;
  for (const auto& [range, part] : op.parts)
    if (!part.done) ranges += fmt::format("{}{}", ranges.empty() ? "" : ", ", range);
  return fmt::format("worker {} at clock {}: a {} of table '{}' waits for range {} since {} ms",
                     id_.index, op.operation.clock,
                     !op.operation.push  ? "pull"
                     : op.operation.pull ? "push-pull"
                                         : "push",
                     job_.tables[op.operation.table].name, ranges,
                     (environment_.now() - op.begun_at).count() / 1000);
}

void ClientNode::ask_task(std::optional<Task> done, OnTask on_task) {
  lost_work_ = false;
  question_ = {{.number = next_number_++, .done = done}, std::move(on_task), environment_.now()};
  send_to(kManager, question_->request);
}

void ClientNode::report(Batch batch, std::string text) {
  const uint64_t number = next_number_++;
  Told& told = reports_[number];
  told = {{number, batch, std::move(text)}, environment_.now()};
  send_to(kManager, told.report);
}

void ClientNode::tick() {
  ManagedNode::tick();
  if (life_ == 0) return;
  const Time now = environment_.now();
  for (auto& [number, told] : reports_) {
    if (now - told.sent_at < job_.timing.retry) continue;
    told.sent_at = now;
    send_to(kManager, told.report);
  }
  for (auto& [number, op] : operations_)
    for (auto& [range, part] : op.parts)
      if (is_due(part)) send_part(part);
  if (question_ && now - question_->sent_at >= job_.timing.retry) {
    question_->sent_at = now;
    send_to(kManager, question_->request);
  }
}

/// When all servers return to a snapshot, the lives of all workers end. The manager says so, but
/// the view may come first: what was read before it and what is read after it must not be mixed.
void ClientNode::on_view() {
  if (has_begun_ && view_.generation != generation_) return end_life();
  generation_ = view_.generation;
  for (auto& [number, op] : operations_)
    for (auto& [range, part] : op.parts)
      if (!part.done && part.request.epoch != view_.ranges[range].epoch) {
        part.way = 0;  // whoever has it does not want it any more
        send_part(part);
      }
  if (std::exchange(has_begun_, true)) return;
  if (on_begin) on_begin();
}

void ClientNode::on_life_ended() {
  operations_.clear();
  question_.reset();
  last_reads_.clear();
  has_begun_ = false;
  lost_work_ = true;
  if (on_end) on_end();
}

void ClientNode::handle(Message& message) {
  if (handle_membership(message) || life_ == 0) return;
  const auto* refusal = std::get_if<Refusal>(&message.body);
  const bool is_other = message.header.generation != view_.generation;
  // A server that has not heard of this generation yet says that it looks at another view.
  if (is_other && !(refusal && refusal->reason == Reason::OtherView))
    return count("of another generation");
  if (auto* reply = std::get_if<Reply>(&message.body)) return on_reply(std::move(*reply));
  if (refusal) return on_refusal(*refusal);
  if (const auto* task = std::get_if<TaskReply>(&message.body)) {
    if (!question_ || question_->request.number != task->number || task->life != life_) return;
    const OnTask on_task = std::move(question_->on_task);
    question_.reset();
    return on_task(*task);
  }
  if (const auto* taken = std::get_if<ReportTaken>(&message.body)) {
    if (taken->life == life_) reports_.erase(taken->number);
    return;
  }
  count("for another role");
}

size_t ClientNode::reply_bytes(const InFlight& op, const Part& part) const {
  if (!op.operation.pull) return 0;
  const TableConfig& config = job_.tables[op.operation.table];
  const size_t elems = config.kind == TableKind::Dense
                           ? block_of(job_, op.operation.table, part.request.id.range).elems
                           : part.rows.size() * config.elems;
  return elems * bytes_of(config.type);
}

void ClientNode::on_reply(Reply reply) {
  if (job_.plant == Plant::AnyReply)
    for (const auto& [number, op] : operations_)
      if (const auto part = op.parts.find(reply.id.range);
          op.operation.table == reply.id.table && part != op.parts.end() && op.operation.pull &&
          !reply.values.empty())
        reply.id = part->second.request.id;
  const auto op = operations_.find(reply.id.number);
  if (op == operations_.end()) return;
  const auto part = op->second.parts.find(reply.id.range);
  if (part == op->second.parts.end() || part->second.done || part->second.request.id != reply.id)
    return;
  const size_t bytes = reply.unchanged ? 0 : reply_bytes(op->second, part->second);
  if (reply.values.size() != bytes) return count("malformed");
  if (op->second.operation.pull) note_read(reply, op->second.operation.keeper);
  const uint64_t number = reply.id.number;
  part->second.done = true;
  usual_ = std::max(environment_.now() - part->second.sent_at, usual_ * 7 / 8);
  put_values(op->second.operation, reply);
  part->second.reply = std::move(reply);
  const bool all =
      std::ranges::all_of(op->second.parts, [](const auto& other) { return other.second.done; });
  if (all) complete(number);
}

/// A reply without values says that the keeper has them; others say so only when they are in place.
void ClientNode::note_read(const Reply& reply, const void* keeper) {
  LastRead& last = last_reads_[{reply.id.table, reply.id.range}];
  const bool still_has = reply.unchanged && last.keeper == keeper && last.version == reply.version;
  last = {reply.version, still_has ? keeper : nullptr};
}

/// If another pull has come since, the keeper has an earlier version than the last.
void ClientNode::has_kept(TableId table, const void* keeper,
                          const std::vector<PulledBlock>& blocks) {
  for (const PulledBlock& block : blocks) {
    const auto last = last_reads_.find({table, block.range});
    if (block.unchanged || last == last_reads_.end()) continue;  // or its life is over
    if (last->second.version == block.version)
      last->second.keeper = keeper;
    else if (last->second.keeper == keeper)
      last->second.keeper = nullptr;
  }
}

void ClientNode::put_values(const Operation& operation, Reply& reply) const {
  const bool dense = job_.tables[reply.id.table].kind == TableKind::Dense;
  if (!operation.into || !dense || reply.values.empty()) return;
  const Block block = block_of(job_, reply.id.table, reply.id.range);
  const size_t width = bytes_of(job_.tables[reply.id.table].type);
  copy_bytes(reply.values.view(), operation.into + block.begin * width);
  reply.values = {};
}

void ClientNode::complete(uint64_t number) {
  InFlight op = std::move(operations_.extract(number).mapped());
  const TableConfig& config = job_.tables[op.operation.table];
  Result result;
  for (auto& [range, part] : op.parts) {
    result.repeated += part.reply.repeated ? 1 : 0;
    result.missed = std::max(result.missed, part.reply.missed);
    result.totals = part.reply.totals;
    if (!op.operation.pull) continue;
    if (config.kind == TableKind::Dense) {
      result.blocks.push_back({range, block_of(job_, op.operation.table, range).begin,
                               std::move(part.reply.values), part.reply.unchanged,
                               part.reply.version});
      continue;
    }
    result.rows.push_back({std::move(part.rows), std::move(part.reply.values)});
  }
  op.on_result(std::move(result));
}

/// A part that met another view goes out again when the view changes, or soon: the server may be
/// about to hear of the view that this node has. A short one that came too early goes at the next
/// tick. Anything else ends the operation.
void ClientNode::on_refusal(const Refusal& refusal) {
  count("refused by a server");
  const auto op = operations_.find(refusal.id.number);
  if (op == operations_.end()) return;
  const auto part = op->second.parts.find(refusal.id.range);
  if (part == op->second.parts.end() || part->second.request.id != refusal.id) return;
  part->second.way = 0;  // it has arrived, for nothing
  if (refusal.reason == Reason::UnknownKeys) {
    if (part->second.keys.empty()) return;
    part->second.request.keys = std::exchange(part->second.keys, {});
    return send_part(part->second);
  }
  // A table that this worker does not read is ahead of the round at almost every clock.
  constexpr size_t kShort = 4096;
  if (refusal.reason == Reason::TooEarly && part->second.request.values.size() <= kShort)
    part->second.again_at = {};
  if (refusal.reason == Reason::OtherView) {
    const Time retry = job_.timing.retry;
    part->second.again_at = environment_.now() + retry / 16;
  }
  if (refusal.reason != Reason::BadRequest && refusal.reason != Reason::NoMemory) return;
  const InFlight failed = std::move(operations_.extract(op).mapped());
  failed.on_result({.error = refusal.sentence});
}

}  // namespace trireme::ps
