#include "trireme/ps/manager.h"

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/ps/data_order.h"

namespace trireme::ps {

Manager::Manager(const JobConfig& job, Environment& environment)
    : Node(kManager, job, environment), books_(job) {
  const std::string log = environment_.read_log();
  const LogContent content = read_records(log);
  if (content.bytes < log.size()) environment_.replace_log(log.substr(0, content.bytes));
  log_bytes_ = content.bytes;
  for (const Decision& decision : content.decisions) books_.apply(decision);
  view_ = books_.view();
  published_ = view_.version;
  life_ = 1;
  started_at_ = ordered_at_ = heard_any_ = snapshot_moved_at_ = environment_.now();
}

void Manager::decide(const Decision& decision) {
  const std::string record = encode_record(decision);
  environment_.append(record);
  log_bytes_ += record.size();
  must_sync_ = true;
  books_.apply(decision);
  view_ = books_.view();
}

/// A log that is much longer than what it says is written anew.
void Manager::shorten_log() {
  constexpr size_t kShort = 1 << 16, kTimes = 4;
  if (log_bytes_ < std::max(kShort, kTimes * image_bytes_) && !job_.short_log) return;
  const std::string record = encode_record(books_.image());
  image_bytes_ = record.size();
  if (log_bytes_ < kTimes * image_bytes_) return;
  environment_.replace_log(record);
  log_bytes_ = record.size();
  must_sync_ = false;
}

/// A lease that has run out says CommError, as a message does that is none.
void Manager::write_log() {
  if (job_.plant == Plant::SendBeforeSync) return;
  try {
    shorten_log();
    if (must_sync_) environment_.sync();
  } catch (const CommError& error) {
    throw LogError(error.what());
  }
}

void Manager::publish() {
  write_log();
  must_sync_ = false;
  tidy_snapshots();
  for (const auto& [to, body] : outbox_) send_to(to, body);
  outbox_.clear();
  if (view_.version == published_) return;
  published_ = view_.version;
  for (const auto& [id, record] : books_.nodes())
    if (record.lives) send_to(node_of(id), ViewChange{view_});
}

/// The process that speaks for a node of the books: of a worker, its first rank.
NodeId Manager::node_of(NodeId id) const {
  return {id.role, id.role == Role::Worker ? id.index * job_.worker_ranks : id.index};
}

void Manager::handle(Message& message) {
  const auto& [header, body] = message;
  if (header.from.role == Role::Manager) return count("for another role");
  if (header.from.role == Role::Watcher) {
    if (!std::holds_alternative<StatusAsk>(body)) return count("for another role");
    return send_to(header.from, Status{status()});
  }
  if (header.from.role == Role::Worker && header.from.index % job_.worker_ranks != 0)
    return on_follower(message);
  if (const auto* hello = std::get_if<Hello>(&body)) {
    on_hello(header.from, *hello);
    return publish();
  }
  NodeId from = header.from;  // as in the books: a worker is one, whatever its ranks
  if (from.role == Role::Worker) from.index /= job_.worker_ranks;
  const auto* record = books_.node(from);
  if (!record || !record->lives || record->life != header.life) {
    count("of an earlier life");
    return send_to(header.from, LifeEnded{header.life, is_replaced(from, header.life)});
  }
  hear(from);
  heard_[from].life = header.life;
  if (const auto* heartbeat = std::get_if<Heartbeat>(&body))
    on_heartbeat(from, *heartbeat);
  else if (header.generation != view_.generation)
    count("of another generation");
  else if (const auto* joined = std::get_if<Joined>(&body))
    on_joined({header.from.index, header.life}, *joined);
  else if (const auto* done = std::get_if<SnapshotDone>(&body))
    on_snapshot_done(*done);
  else if (const auto* request = std::get_if<TaskRequest>(&body))
    on_task_request(header.from.index / job_.worker_ranks, *request);
  else if (const auto* report = std::get_if<Report>(&body))
    on_report(header.from.index / job_.worker_ranks, *report);
  else
    count("for another role");
  publish();
}

/// Whether a later life of the node has said something: a late greeting of a process that is dead
/// begins a life, too, but nobody speaks in it.
bool Manager::is_replaced(NodeId id, Life life) const {
  const auto* record = books_.node(id);
  const auto heard = heard_.find(id);
  return record && record->lives && record->life > life && heard != heard_.end() &&
         heard->second.life == record->life;
}

/// Other ranks of a worker do not register. They ask for the view in the life of the first one.
void Manager::on_follower(const Message& message) {
  const auto* heartbeat = std::get_if<Heartbeat>(&message.body);
  if (!heartbeat) return count("for another role");
  const NodeId from = message.header.from;
  const auto* record = books_.node({Role::Worker, from.index / job_.worker_ranks});
  if (!record || !record->lives || record->life != message.header.life)
    return send_to(from, LifeEnded{message.header.life});
  if (heartbeat->view_version < view_.version) send_to(from, ViewChange{view_});
}

std::string Manager::reject(NodeId from, const Hello& hello) const {
  if (hello.fingerprint != job_.fingerprint())
    return fmt::format(
        "{} has another job '{}' than the manager: all processes must be given the same tables, "
        "ranges, data and rules",
        name_of(from), job_.name);
  constexpr uint32_t kMostServers = 1024;
  const uint32_t most = from.role == Role::Worker ? job_.workers * job_.worker_ranks : kMostServers;
  if (from.index >= most)
    return fmt::format("there is no {}: this job has at most {}", name_of(from), most);
  return {};
}

void Manager::on_hello(NodeId from, const Hello& hello) {
  if (const std::string why = reject(from, hello); !why.empty()) {
    count("from a stranger");
    return reply(from, Rejected{hello.nonce, why});
  }
  from.index /= from.role == Role::Worker ? job_.worker_ranks : 1;
  const auto* record = books_.node(from);
  if (record && record->former.contains(hello.nonce)) {
    count("of an earlier life");
    // It came late, or its welcome was lost and the process that sent it still waits.
    return reply(node_of(from), LifeEnded{.nonce = hello.nonce});
  }
  const bool is_known = record && record->lives && record->nonce == hello.nonce;
  if (!is_known) {
    decide(LifeBegins{from, record ? record->life + 1 : 1, hello.nonce, hello.lanes});
    hear(from);
    mend_ranges();
  }
  reply(node_of(from), Welcome{hello.nonce, books_.node(from)->life, books_.view()});
}

void Manager::on_heartbeat(NodeId from, const Heartbeat& heartbeat) {
  constexpr Time kWindow = std::chrono::seconds(1);
  Hearing& hearing = heard_[from];
  if (hearing.last - hearing.before_at >= kWindow) {
    hearing.before = hearing.figures;
    hearing.before_at = hearing.figures_at;
  }
  hearing.figures = heartbeat.figures;
  hearing.figures_at = hearing.last;
  if (heartbeat.view_version < view_.version) reply(node_of(from), ViewChange{view_});
  if (heartbeat.leaving && from.role == Role::Server && !books_.node(from)->leaves) {
    decide(ServerLeaves{from.index});
    mend_ranges();
  }
}

void Manager::on_joined(Member from, const Joined& joined) {
  if (joined.range >= job_.ranges) return count("bad request");
  const Assignment& now = view_.ranges[joined.range];
  if (now.epoch != joined.epoch || !now.joiner || now.chain.back() != from ||
      !books_.lives(*now.joiner))
    return;
  Assignment next = now;
  next.epoch = next_epoch(now.epoch);
  next.chain.push_back(*now.joiner);
  next.joiner.reset();
  decide(RangeAssigned{joined.range, next});
  mend_ranges();
}

void Manager::tick() {
  end_silent_lives();
  mend_ranges();
  give_up_snapshot();
  order_snapshot();
  if (is_finished() && !view_.over && are_dealt()) decide(JobOver{});
  publish();
}

void Manager::hear(NodeId id) {
  const Time now = environment_.now();
  forget_silences();
  heard_any_ = now;
  auto [at, is_new] = heard_.try_emplace(id, Hearing{now, now});
  if (now - at->second.last > job_.timing.dead_after / 2) at->second.since = now;
  at->second.last = now;
  at->second.lost_at.reset();
}

void Manager::on_stream_lost(NodeId id) {
  if (id.role == Role::Worker) id.index /= job_.worker_ranks;
  const auto found = heard_.find(id);
  if (found != heard_.end()) found->second.lost_at = environment_.now();
}

Time Manager::silence_of(NodeId id) const {
  const auto heard = heard_.find(id);
  return environment_.now() - (heard == heard_.end() ? started_at_ : heard->second.last);
}

/// Whether the server was heard a moment ago, and for a while. A single sign of life after a pause
/// may mean that the manager was cut off, and that others are about to be heard, too.
bool Manager::is_well(Member server) const {
  const auto heard = heard_.find({Role::Server, server.index});
  if (!books_.lives(server) || heard == heard_.end() || heard->second.lost_at) return false;
  const Time now = environment_.now(), limit = job_.timing.dead_after;
  return now - heard->second.last <= limit / 3 && now - heard->second.since >= limit / 2;
}

/// Whether some range has no other server that is well: then to end this one may be to lose it.
bool Manager::is_last_heard_holder(NodeId id) const {
  return std::ranges::any_of(view_.ranges, [&](const Assignment& assignment) {
    return std::ranges::find(assignment.chain, id.index, &Member::index) !=
               assignment.chain.end() &&
           std::ranges::none_of(assignment.chain, [&](Member member) {
             return member.index != id.index && is_well(member);
           });
  });
}

/// A manager that hears nobody is itself cut off, or was stopped. It ends no lives, and all begin
/// to count anew when it hears someone again.
void Manager::forget_silences() {
  const Time now = environment_.now();
  if (now - heard_any_ <= job_.timing.dead_after / 2) return;
  heard_.clear();
  started_at_ = now;
}

void Manager::end_silent_lives() {
  const Time now = environment_.now();
  forget_silences();
  if (started_at_ == now) return;
  for (const auto& [id, record] : std::map(books_.nodes())) {
    if (!record.lives) continue;
    const Time silence = silence_of(id);
    const auto heard = heard_.find(id);
    const bool is_gone = heard != heard_.end() && heard->second.lost_at &&
                         now - *heard->second.lost_at > job_.timing.gone_after;
    if (!is_gone && silence <= job_.timing.dead_after) continue;
    const bool may_cost = id.role == Role::Server && is_last_heard_holder(id);
    if (may_cost && silence <= job_.timing.lost_after) continue;
    if (!view_.over)  // then they end, as they should
      environment_.note(
          fmt::format("manager: {} is silent; its life {} is over", name_of(id), record.life));
    if (job_.plant == Plant::DoneTooEarly && id.role == Role::Worker)
      if (const auto holding = books_.holding(id.index)) decide(TaskDone{holding->task, id.index});
    decide(LifeEnds{id});
  }
}

std::vector<uint32_t> Manager::eligible_servers() const {
  std::vector<uint32_t> servers;
  for (const auto& [id, record] : books_.nodes())
    if (id.role == Role::Server && record.lives && !record.leaves) servers.push_back(id.index);
  return servers;
}

std::vector<std::vector<uint32_t>> Manager::targets() const {
  return place_ranges(job_.ranges, eligible_servers(), job_.copies + 1);
}

std::vector<Assignment> Manager::deal_ranges() const {
  const auto chains = targets();
  std::vector<Assignment> ranges(job_.ranges);
  for (RangeId range = 0; range < job_.ranges; ++range) {
    ranges[range].epoch = view_.ranges[range].epoch + 1;
    for (const uint32_t server : chains[range])
      ranges[range].chain.push_back({server, books_.node({Role::Server, server})->life});
  }
  return ranges;
}

bool Manager::are_dealt() const {
  return std::ranges::all_of(view_.ranges, [](const Assignment& range) { return range.epoch > 0; });
}

/// Returns whether the ranges have been dealt. A manager that died meanwhile goes on where it was.
bool Manager::deal_first_ranges() {
  if (are_dealt()) return true;
  const size_t servers = eligible_servers().size();
  const bool waited = environment_.now() - started_at_ >= job_.timing.gather;
  if (servers < job_.servers && !(waited && servers > 0)) return false;
  const std::vector<Assignment> ranges = deal_ranges();
  for (RangeId range = 0; range < job_.ranges; ++range)
    if (view_.ranges[range].epoch == 0) decide(RangeAssigned{range, ranges[range]});
  return true;
}

void Manager::mend_ranges() {
  if (!deal_first_ranges()) return;
  const bool is_lost = std::ranges::any_of(view_.ranges, [&](const Assignment& assignment) {
    return std::ranges::none_of(assignment.chain,
                                [&](Member member) { return books_.lives(member); });
  });
  if (is_lost) return roll_back();
  const auto wanted = targets();
  for (RangeId range = 0; range < job_.ranges; ++range) {
    const auto next = mended(range, wanted[range]);
    const bool begins_copy = next && next->joiner && next->joiner != view_.ranges[range].joiner;
    if (next && (!begins_copy || may_copy())) decide(RangeAssigned{range, *next});
  }
  if (books_.order_is_lost()) order_again();
}

/// Copies of ranges keep servers from answering: a few at a time are as fast as all at once.
bool Manager::may_copy() const {
  const auto copies = std::ranges::count_if(
      view_.ranges, [](const Assignment& assignment) { return assignment.joiner.has_value(); });
  return static_cast<size_t>(copies) < eligible_servers().size();
}

/// The next step from what a range has towards what it should have, if there is one:
///
///   a dead server                    A B   ->  B         the living go on at once
///   a server that should have it     B     ->  B (C)     C gets a copy; then, by Joined, B C
///   a server that should not         B C   ->  C
std::optional<Assignment> Manager::mended(RangeId range,
                                          const std::vector<uint32_t>& targets) const {
  const Assignment& now = view_.ranges[range];
  Assignment next = now;
  next.epoch = next_epoch(now.epoch);
  std::erase_if(next.chain, [&](Member member) { return !books_.lives(member); });
  if (next.joiner && !books_.lives(*next.joiner)) next.joiner.reset();
  if (next.chain != now.chain || next.joiner != now.joiner) return next;

  const auto is_target = [&](Member member) {
    return std::ranges::find(targets, member.index) != targets.end();
  };
  if (now.joiner) {
    if (is_target(*now.joiner)) return {};
    next.joiner.reset();
    return next;
  }
  for (const uint32_t server : targets) {
    if (std::ranges::find(now.chain, server, &Member::index) != now.chain.end()) continue;
    next.joiner = Member{server, books_.node({Role::Server, server})->life};
    return next;
  }
  // Whoever stays may be dead already, and nobody knows it yet: so copies + 1 must stay, and all of
  // them were heard a moment ago. (A new manager may not know that one died while it was away.) A
  // server that leaves waits until there are so many others.
  const auto extra = std::ranges::find_if_not(next.chain, is_target);
  if (extra == next.chain.end() || next.chain.size() <= job_.copies + 1) return {};
  const bool others_are_well = std::ranges::all_of(
      next.chain, [&](const Member& member) { return &member == &*extra || is_well(member); });
  if (!others_are_well) return {};
  next.chain.erase(extra);
  return next;
}

/// A range has no living server left. Its updates since the last snapshot are gone, so those of
/// all ranges go: a mixture of old and new would be no state that training was ever in.
void Manager::roll_back() {
  if (eligible_servers().empty()) return;
  if (keeps_result_ && view_.over && !books_.snapshot_has_all())
    throw Error(
        fmt::format("all work was done, but a range lost all its servers before the job had ended, "
                    "and with it the result: take snapshots, or more copies than {}",
                    job_.copies));
  abandon_snapshot();
  decide(RolledBack{deal_ranges()});
  snapshot_parts_.clear();
  given_at_.clear();
  environment_.note(fmt::format(
      "manager: a range lost all its servers; all servers return to {} (generation {}); copies "
      "above {} would have kept it",
      view_.restored.snapshot == 0 ? "the beginning"
                                   : fmt::format("the snapshot of step {}", view_.restored.step),
      view_.generation, job_.copies));
}

void Manager::stop_early() {
  if (books_.all_done()) return;
  Task end = books_.latest_task();
  while (end < books_.num_tasks() && batches_of(job_, end)[0] % job_.workers != 0) ++end;
  decide(EndsAt{end});
  publish();
}

void Manager::on_report(uint32_t worker, const Report& report) {
  if (report.batch >= job_.batches()) return count("bad request");
  if (on_reports) {
    if (report.batch >= books_.reports_written()) decide(Reported{report.batch, report.text});
    const Batch written = on_reports(books_.reports_written(), books_.reports());
    if (written > books_.reports_written()) decide(ReportsWritten{written});
  }
  reply(node_of({Role::Worker, worker}),
        ReportTaken{books_.node({Role::Worker, worker})->life, report.number});
}

}  // namespace trireme::ps
