#include "trireme/ps/server.h"

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme::ps {

namespace {

bool holds(const Assignment& assignment, Member member) {
  return assignment.joiner == member ||
         std::ranges::find(assignment.chain, member) != assignment.chain.end();
}

}  // namespace

const Replica* Server::replica(TableId table, RangeId range) const {
  const auto found = replicas_.find({table, range});
  return found == replicas_.end() ? nullptr : found->second.get();
}

Replica* Server::find(TableId table, RangeId range) {
  return const_cast<Replica*>(replica(table, range));
}

size_t Server::bytes() const {
  size_t bytes = 0;
  for (const auto& [part, replica] : replicas_)
    if (replica->state()) bytes += replica->state()->storage().bytes();
  return bytes;
}

std::string Server::no_room_for(size_t more) const {
  if (job_.server_bytes == 0 || more == 0 || bytes() + more <= job_.server_bytes) return {};
  return fmt::format(
      "server {} has {} of its {} bytes in use and cannot take {} more; add servers, raise "
      "server_bytes, or evict rows with most_rows",
      id_.index, bytes(), job_.server_bytes, more);
}

void Server::refuse(NodeId to, Refusal refusal) {
  static const char* const kWhy[] = {"for another view", "too early", "of an earlier life",
                                     "bad request", "no memory"};
  count(kWhy[static_cast<size_t>(refusal.reason)]);
  send_to(to, refusal);
}

void Server::on_view() {
  if (view_.generation != generation_) {
    for (auto& [part, replica] : replicas_) replica->retire();
    replicas_.clear();
    rounds_.clear();
    generation_ = view_.generation;
  }
  for (TableId table = 0; table < job_.tables.size(); ++table) {
    for (RangeId range = 0; range < job_.ranges; ++range) {
      const Part part{table, range};
      const Assignment& assignment = view_.ranges[range];
      if (!holds(assignment, self())) {
        if (const auto found = replicas_.find(part); found != replicas_.end()) {
          found->second->retire();
          replicas_.erase(found);
        }
        continue;
      }
      auto& replica = replicas_[part];
      ReplicaHost& host = *this;
      if (!replica) replica = std::make_unique<Replica>(Place{&job_, table, range}, host);
      replica->install(assignment);
      replica->follow_view();
    }
  }
}

void Server::on_life_ended() {
  environment_.note(fmt::format("server {}: life {} is over; its ranges go", id_.index, life_));
  for (auto& [part, replica] : replicas_) replica->retire();
  replicas_.clear();
  rounds_.clear();
}

void Server::handle(Message& message) {
  if (handle_membership(message) || life_ == 0) return;
  if (auto* request = std::get_if<Request>(&message.body)) {
    if (message.header.generation == view_.generation)
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

void Server::dispatch(Message& message) {
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
  else if (const auto* ask = std::get_if<RoundAsk>(&message.body))
    to_replica(*ask, [&](Replica& replica) { replica.on_round_ask(*ask, message.header.from); });
  else if (const auto* ready = std::get_if<RoundReady>(&message.body))
    to_replica(*ready, [&](Replica& replica) { replica.on_round_ready(*ready); });
  else if (const auto* whole = std::get_if<RoundWhole>(&message.body))
    on_whole(*whole);
  else
    count("for another role");
}

void Server::on_request(Request request, NodeId from) {
  const auto refuse_with = [&](Reason reason, std::string sentence) {
    refuse(from, {.id = request.id, .reason = reason, .sentence = std::move(sentence)});
  };
  if (from != NodeId{Role::Worker, request.id.worker})
    return refuse_with(Reason::BadRequest,
                       fmt::format("{} speaks for worker {}", name_of(from), request.id.worker));
  if (request.id.table >= job_.tables.size())
    return refuse_with(Reason::BadRequest, fmt::format("there is no table {}; the job has {}",
                                                       request.id.table, job_.tables.size()));
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

void Server::on_whole(const RoundWhole& whole) {
  const auto& chain = view_.ranges[0].chain;
  if (chain.empty() || chain[0] != self()) return rounds_.clear();
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
            RoundReady{table, range, whole.clock, rounds_.norm(whole.clock, table)});
  }
}

/// A range has joined when all its tables have.
void Server::report_joined() {
  for (RangeId range = 0; range < job_.ranges; ++range) {
    bool joined = true;
    for (TableId table = 0; table < job_.tables.size(); ++table) {
      const Replica* found = replica(table, range);
      joined = joined && found && found->has_joined();
    }
    if (joined) send_to(kManager, Joined{range, view_.ranges[range].epoch});
  }
}

void Server::tick() {
  ManagedNode::tick();
  if (life_ == 0) return;
  for (auto& [part, replica] : replicas_) replica->tick();
  report_joined();
  const auto& chain = view_.ranges[0].chain;
  if (chain.empty() || chain[0] != self()) return;
  for (const RoundAsk& ask : rounds_.missing()) {
    const auto& heads = view_.ranges[ask.range].chain;
    if (!heads.empty()) send_to({Role::Server, heads[0].index}, ask);
  }
}

}  // namespace trireme::ps
