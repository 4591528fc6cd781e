#include "trireme/ps/manager.h"

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme::ps {

Manager::Manager(const JobConfig& job, Environment& environment)
    : Node(kManager, job, environment), books_(job) {
  const std::string log = environment_.read_log();
  const LogContent content = read_records(log);
  if (content.bytes < log.size()) environment_.truncate_log(content.bytes);
  for (const Decision& decision : content.decisions) books_.apply(decision);
  view_ = books_.view();
  published_ = view_.version;
  life_ = 1;
  started_at_ = ordered_at_ = heard_any_ = environment_.now();
}

void Manager::decide(const Decision& decision) {
  environment_.append(encode_record(decision));
  must_sync_ = true;
  books_.apply(decision);
  view_ = books_.view();
}

void Manager::publish() {
  const bool planted = job_.plant == Plant::SendBeforeSync;
  if (must_sync_ && !planted) environment_.sync();
  must_sync_ = false;
  for (const auto& [to, body] : outbox_) send_to(to, body);
  outbox_.clear();
  if (view_.version == published_) return;
  published_ = view_.version;
  for (const auto& [id, record] : books_.nodes())
    if (record.lives) send_to(id, ViewChange{view_});
}

void Manager::handle(Message& message) {
  const auto& [header, body] = message;
  if (header.from.role == Role::Manager) return count("for another role");
  if (const auto* hello = std::get_if<Hello>(&body)) {
    on_hello(header.from, *hello);
    return publish();
  }
  const auto* record = books_.node(header.from);
  if (!record || !record->lives || record->life != header.life) {
    count("of an earlier life");
    return send_to(header.from, LifeEnded{header.life});
  }
  hear(header.from);
  if (const auto* heartbeat = std::get_if<Heartbeat>(&body))
    on_heartbeat(header.from, *heartbeat);
  else if (header.generation != view_.generation)
    count("of another generation");
  else if (const auto* joined = std::get_if<Joined>(&body))
    on_joined({header.from.index, header.life}, *joined);
  else if (const auto* done = std::get_if<SnapshotDone>(&body))
    on_snapshot_done(*done);
  else if (const auto* request = std::get_if<TaskRequest>(&body))
    on_task_request(header.from.index, *request);
  else
    count("for another role");
  publish();
}

void Manager::on_hello(NodeId from, const Hello& hello) {
  constexpr uint32_t kMostServers = 1024;
  if (from.index >= (from.role == Role::Worker ? job_.workers : kMostServers))
    return count("from a stranger");
  const auto* record = books_.node(from);
  if (record && record->former.contains(hello.nonce)) return count("of an earlier life");
  const bool is_known = record && record->lives && record->nonce == hello.nonce;
  if (!is_known) {
    decide(LifeBegins{from, record ? record->life + 1 : 1, hello.nonce});
    hear(from);
    mend_ranges();
  }
  reply(from, Welcome{hello.nonce, books_.node(from)->life, books_.view()});
}

void Manager::on_heartbeat(NodeId from, const Heartbeat& heartbeat) {
  if (heartbeat.view_version < view_.version) reply(from, ViewChange{view_});
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
  order_snapshot();
  publish();
}

void Manager::hear(NodeId id) {
  const Time now = heard_any_ = environment_.now();
  auto [at, is_new] = heard_.try_emplace(id, Hearing{now, now});
  if (now - at->second.last > job_.timing.dead_after / 2) at->second.since = now;
  at->second.last = now;
}

Time Manager::silence_of(NodeId id) const {
  const auto heard = heard_.find(id);
  return environment_.now() - (heard == heard_.end() ? started_at_ : heard->second.last);
}

/// Whether the server was heard a moment ago, and for a while. A single sign of life after a pause
/// may mean that the manager was cut off, and that others are about to be heard, too.
bool Manager::is_well(Member server) const {
  const auto heard = heard_.find({Role::Server, server.index});
  if (!books_.lives(server) || heard == heard_.end()) return false;
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

/// A manager that hears nobody is itself cut off. It ends no lives, and all begin to count anew
/// when it hears someone again.
void Manager::end_silent_lives() {
  const Time now = environment_.now();
  if (now - heard_any_ > job_.timing.dead_after / 2) {
    heard_.clear();
    started_at_ = now;
    return;
  }
  for (const auto& [id, record] : std::map(books_.nodes())) {
    const Time silence = silence_of(id);
    if (!record.lives || silence <= job_.timing.dead_after) continue;
    const bool may_cost = id.role == Role::Server && is_last_heard_holder(id);
    if (may_cost && silence <= job_.timing.lost_after) continue;
    environment_.note(
        fmt::format("manager: {} is silent; its life {} is over", name_of(id), record.life));
    if (job_.plant == Plant::DoneTooEarly && id.role == Role::Worker)
      if (const auto holding = books_.holding(id.index)) decide(TaskDone{holding->task});
    decide(LifeEnds{id});
  }
}

std::vector<uint32_t> Manager::eligible_servers() const {
  std::vector<uint32_t> servers;
  for (const auto& [id, record] : books_.nodes())
    if (id.role == Role::Server && record.lives && !record.leaves) servers.push_back(id.index);
  return servers;
}

std::vector<Assignment> Manager::deal_ranges() const {
  const std::vector<uint32_t> servers = eligible_servers();
  std::vector<Assignment> ranges(job_.ranges);
  for (RangeId range = 0; range < job_.ranges; ++range) {
    ranges[range].epoch = view_.ranges[range].epoch + 1;
    for (const uint32_t server : servers_of_range(range, servers, job_.copies + 1))
      ranges[range].chain.push_back({server, books_.node({Role::Server, server})->life});
  }
  return ranges;
}

/// Returns whether the ranges have been dealt.
bool Manager::deal_first_ranges() {
  if (view_.ranges[0].epoch > 0) return true;
  const size_t servers = eligible_servers().size();
  const bool waited = environment_.now() - started_at_ >= job_.timing.gather;
  if (servers < job_.servers && !(waited && servers > 0)) return false;
  const std::vector<Assignment> ranges = deal_ranges();
  for (RangeId range = 0; range < job_.ranges; ++range) decide(RangeAssigned{range, ranges[range]});
  return true;
}

void Manager::mend_ranges() {
  if (!deal_first_ranges()) return;
  const bool is_lost = std::ranges::any_of(view_.ranges, [&](const Assignment& assignment) {
    return std::ranges::none_of(assignment.chain,
                                [&](Member member) { return books_.lives(member); });
  });
  if (is_lost) return roll_back();
  for (RangeId range = 0; range < job_.ranges; ++range)
    if (const auto next = mended(range)) decide(RangeAssigned{range, *next});
}

/// The next step from what a range has towards what it should have, if there is one:
///
///   a dead server                    A B   ->  B         the living go on at once
///   a server that should have it     B     ->  B (C)     C gets a copy; then, by Joined, B C
///   a server that should not         B C   ->  C
std::optional<Assignment> Manager::mended(RangeId range) const {
  const Assignment& now = view_.ranges[range];
  Assignment next = now;
  next.epoch = next_epoch(now.epoch);
  std::erase_if(next.chain, [&](Member member) { return !books_.lives(member); });
  if (next.joiner && !books_.lives(*next.joiner)) next.joiner.reset();
  if (next.chain != now.chain || next.joiner != now.joiner) return next;

  const auto targets = servers_of_range(range, eligible_servers(), job_.copies + 1);
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
  // Whoever stays may be dead already, and nobody knows it yet: so copies + 1 must stay. A server
  // that leaves waits until there are so many others.
  const auto extra = std::ranges::find_if_not(next.chain, is_target);
  if (extra == next.chain.end() || next.chain.size() <= job_.copies + 1) return {};
  next.chain.erase(extra);
  return next;
}

/// A range has no living server left. Its updates since the last snapshot are gone, so those of
/// all ranges go: a mixture of old and new would be no state that training was ever in.
void Manager::roll_back() {
  if (eligible_servers().empty()) return;
  decide(RolledBack{deal_ranges()});
  snapshot_parts_.clear();
  environment_.note(fmt::format(
      "manager: a range lost all its servers; all servers return to {} (generation {}); copies "
      "above {} would have kept it",
      view_.restored == 0 ? "the seed" : fmt::format("snapshot {}", view_.restored),
      view_.generation, job_.copies));
}

void Manager::order_snapshot() {
  const Time every = job_.timing.snapshot_every, now = environment_.now();
  if (every == Time::zero() || now - ordered_at_ < every || view_.snapshot.snapshot != 0) return;
  if (view_.ranges[0].epoch == 0 || books_.all_done()) return;
  const Clock clock = job_.in_lanes() ? books_.latest_clock() : 0;
  ordered_at_ = now;
  if (job_.in_lanes() && clock * job_.workers >= job_.batches()) return;
  snapshot_parts_.clear();
  decide(SnapshotOrdered{{books_.newest_order() + 1, clock}});
}

void Manager::on_snapshot_done(const SnapshotDone& done) {
  if (done.snapshot != view_.snapshot.snapshot || done.snapshot == 0) return;
  if (done.table >= job_.tables.size() || done.range >= job_.ranges) return count("bad request");
  snapshot_parts_.insert({done.table, done.range});
  if (snapshot_parts_.size() < job_.tables.size() * job_.ranges) return;
  decide(SnapshotComplete{done.snapshot});
  snapshot_parts_.clear();
}

}  // namespace trireme::ps
