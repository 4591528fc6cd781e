#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/ps/server.h"

namespace trireme::ps {

namespace {

bool holds(const Assignment& assignment, Member member) {
  return assignment.joiner == member ||
         std::ranges::find(assignment.chain, member) != assignment.chain.end();
}

}  // namespace

const Replica* ServerLane::replica(TableId table, RangeId range) const {
  const auto found = replicas_.find({table, range});
  return found == replicas_.end() ? nullptr : found->second.get();
}

Replica* ServerLane::find(TableId table, RangeId range) {
  return const_cast<Replica*>(replica(table, range));
}

uint64_t ServerLane::room_bytes() const {
  if (job_.server_bytes == 0) return UINT64_MAX;
  return job_.server_bytes - std::min<uint64_t>(job_.server_bytes, totals_.bytes);
}

void ServerLane::grew(uint64_t bytes) {
  counted_.bytes += bytes;
  totals_.bytes += bytes;
}

std::string ServerLane::describe_memory() const {
  return fmt::format("server {} has {} of its {} bytes in use", id_.index, totals_.bytes.load(),
                     job_.server_bytes);
}

void ServerLane::refuse(NodeId to, Refusal refusal) {
  static const char* const kWhy[] = {"for another view", "too early",   "of an earlier life",
                                     "unknown keys",     "bad request", "no memory"};
  count(kWhy[static_cast<size_t>(refusal.reason)]);
  send_to(to, refusal);
}

void ServerLane::drop_all() {
  for (auto& [part, replica] : replicas_) replica->retire();
  replicas_.clear();
  missing_.clear();
  rounds_.clear();
}

/// Nothing passes from one life or generation to the next.
void ServerLane::follow(const Standing& standing) {
  if (standing.life != life_ || standing.view.generation != view_.generation) drop_all();
  life_ = standing.life;
  view_ = standing.view;
  if (life_ != 0) follow_ranges();
  count_figures();
}

void ServerLane::follow_ranges() {
  for (TableId table = 0; table < job_.tables.size(); ++table) {
    for (RangeId range = lane_; range < job_.ranges; range += job_.lanes) {
      const Part part{table, range};
      const Assignment& assignment = view_.ranges[range];
      const bool is_here = replicas_.contains(part);
      missing_.erase(part);
      if (!holds(assignment, self())) {
        if (const auto found = replicas_.find(part); found != replicas_.end()) {
          found->second->retire();
          replicas_.erase(found);
        }
        continue;
      }
      if (is_here || assignment.joiner == self())
        install(part);
      else
        missing_.insert(part);
    }
  }
}

void ServerLane::install(Part part) {
  const auto [table, range] = part;
  auto& replica = replicas_[part];
  ReplicaHost& host = *this;
  if (!replica) replica = std::make_unique<Replica>(Place{&job_, table, range, memory_}, host);
  replica->install(view_.ranges[range]);
  replica->follow_view();
}

/// To read a first state from the disk may take long. `follow` runs on the thread that says to the
/// manager that this server lives, so this is done at ticks, by each lane on its own thread, and
/// for a short time each. Who asks for a range meanwhile is told to look again.
void ServerLane::build_missing() {
  constexpr Time kAtOnce = std::chrono::milliseconds(100);
  const Time until = environment_.now() + kAtOnce;
  while (!missing_.empty() && environment_.now() < until)
    install(missing_.extract(missing_.begin()).value());
}

void ServerLane::handle(Message& message) {
  auto* request = std::get_if<Request>(&message.body);
  if (life_ == 0 && !request) return;
  if (request) {
    if (life_ != 0 && message.header.generation == view_.generation)
      return on_request(std::move(*request), message.header.from);
    return refuse(message.header.from,
                  {.id = request->id,
                   .reason = Reason::OtherView,
                   .sentence = fmt::format("this is generation {}, and the request is of {}",
                                           view_.generation, message.header.generation)});
  }
  if (message.header.generation != view_.generation) return count("of another generation");
  dispatch(message);
}

void ServerLane::dispatch(Message& message) {
  const Member from{message.header.from.index, message.header.life};
  const bool is_server = message.header.from.role == Role::Server;
  const auto to_replica = [&](const auto& body, auto&& deliver) {
    Replica* found = find(body.table, body.range);
    if (!found || !is_server) return count("for a range that is not here");
    deliver(*found);
  };
  if (auto* forward = std::get_if<Forward>(&message.body))
    to_replica(*forward, [&](Replica& replica) { replica.on_forward(std::move(*forward), from); });
  else if (const auto* ack = std::get_if<Ack>(&message.body))
    to_replica(*ack, [&](Replica& replica) { replica.on_ack(*ack, from); });
  else if (const auto* transfer = std::get_if<Transfer>(&message.body))
    to_replica(*transfer, [&](Replica& replica) { replica.on_transfer(*transfer, from); });
  else if (const auto* came = std::get_if<TransferAck>(&message.body))
    to_replica(*came, [&](Replica& replica) { replica.on_transfer_ack(*came, from); });
  else if (const auto* ask = std::get_if<RoundAsk>(&message.body))
    to_replica(*ask, [&](Replica& replica) { replica.on_round_ask(*ask, message.header.from); });
  else if (const auto* ready = std::get_if<RoundReady>(&message.body))
    to_replica(*ready, [&](Replica& replica) { replica.on_round_ready(*ready); });
  else if (const auto* whole = std::get_if<RoundWhole>(&message.body); whole && is_server)
    on_whole(*whole);
  else
    count("for another role");
}

void ServerLane::on_request(Request request, NodeId from) {
  const auto refuse_with = [&](Reason reason, std::string sentence) {
    refuse(from, {.id = request.id, .reason = reason, .sentence = std::move(sentence)});
  };
  if (from.role != Role::Worker || from.index / job_.worker_ranks != request.id.worker)
    return refuse_with(Reason::BadRequest,
                       fmt::format("{} speaks for worker {}", name_of(from), request.id.worker));
  if (request.id.table >= job_.tables.size())
    return refuse_with(Reason::BadRequest, fmt::format("there is no table {}; the job has {}",
                                                       request.id.table, job_.tables.size()));
  const TableConfig& table = job_.tables[request.id.table];
  if (request.push && from.index % job_.worker_ranks != table.rank)
    return refuse_with(Reason::BadRequest,
                       fmt::format("{} pushes to table '{}', which is rank {}'s of each worker",
                                   name_of(from), table.name, table.rank));
  if (request.id.range >= job_.ranges)
    return refuse_with(Reason::BadRequest, fmt::format("there is no range {}; the job has {}",
                                                       request.id.range, job_.ranges));
  if (request.view_version > view_.version)
    return refuse_with(Reason::OtherView,
                       fmt::format("the request is for view {}, and server {} knows {}",
                                   request.view_version, id_.index, view_.version));
  Replica* found = find(request.id.table, request.id.range);
  if (found && request.epoch == found->epoch()) return found->on_request(std::move(request), from);
  if (request.epoch < view_.ranges[request.id.range].epoch) send_to(from, ViewChange{view_});
  refuse_with(Reason::OtherView,
              fmt::format("range {} is in epoch {}, and the request is for epoch {}",
                          request.id.range, view_.ranges[request.id.range].epoch, request.epoch));
}

/// Whether this lane is the coordinator of lockstep: it has the head of range 0.
bool ServerLane::coordinates() const {
  if (lane_ != job_.lane_of(0) || view_.ranges.empty()) return false;
  const auto& chain = view_.ranges[0].chain;
  return !chain.empty() && chain[0] == self();
}

void ServerLane::on_whole(const RoundWhole& whole) {
  if (!coordinates()) return rounds_.clear();
  if (whole.table >= job_.tables.size() || whole.range >= job_.ranges ||
      !job_.in_lockstep(whole.table))
    return count("bad request");
  const bool was_whole = rounds_.is_whole(whole.clock);
  rounds_.add(whole);
  if (!rounds_.is_whole(whole.clock)) return;
  for (const auto& [table, range] : rounds_.all_parts()) {
    const bool asks_again = table == whole.table && range == whole.range;
    const auto& heads = view_.ranges[range].chain;
    if (heads.empty() || (was_whole && !asks_again)) continue;
    send_to({Role::Server, heads[0].index},
            RoundReady{table, range, whole.clock, rounds_.squares(whole.clock)});
  }
}

/// A range has joined when all its tables have.
void ServerLane::report_joined() {
  for (RangeId range = lane_; range < job_.ranges; range += job_.lanes) {
    bool joined = true;
    for (TableId table = 0; table < job_.tables.size(); ++table) {
      const Replica* found = replica(table, range);
      joined = joined && found && found->has_joined();
    }
    if (joined) send_to(kManager, Joined{range, view_.ranges[range].epoch});
  }
}

void ServerLane::on_saved(const SnapshotPart& part, std::string contents) {
  if (Replica* found = find(part.table, part.range))
    found->on_saved(part.snapshot, std::move(contents));
}

/// Adds to the totals how this lane's own figures have changed.
void ServerLane::count_figures() {
  Figures now;
  for (const auto& [part, replica] : replicas_) {
    if (replica->state()) {
      now.bytes += replica->state()->storage().bytes();
      now.rows += replica->state()->storage().rows();
    }
    now.pushes += replica->pushes();
    now.pulls += replica->pulls();
    now.behind += replica->behind();
  }
  for (const auto& [why, times] : refused()) now.refused += times;
  totals_.bytes += now.bytes - counted_.bytes;
  totals_.rows += now.rows - counted_.rows;
  totals_.pushes += now.pushes - counted_.pushes;
  totals_.pulls += now.pulls - counted_.pulls;
  totals_.behind += now.behind - counted_.behind;
  totals_.refused += now.refused - counted_.refused;
  const uint64_t replicas = replicas_.size() + missing_.size();
  totals_.replicas += replicas - counted_replicas_;
  counted_ = now;
  counted_replicas_ = replicas;
}

void ServerLane::tick() {
  if (life_ == 0) return;
  build_missing();
  for (auto& [part, replica] : replicas_) replica->tick();
  report_joined();
  count_figures();
  if (!coordinates()) return;
  for (const RoundAsk& ask : rounds_.missing()) {
    const auto& heads = view_.ranges[ask.range].chain;
    if (!heads.empty()) send_to({Role::Server, heads[0].index}, ask);
  }
}

}  // namespace trireme::ps
