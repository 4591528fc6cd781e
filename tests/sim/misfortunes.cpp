#include "sim/misfortunes.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme::sim {

using std::chrono::milliseconds;

Time Misfortunes::some_time() {
  return Time(world_.random().between(20'000, static_cast<uint64_t>(scenario_.storm.count())));
}

void Misfortunes::plan() {
  for (size_t i = 0; i < scenario_.crashes; ++i) world_.at(some_time(), [this] { crash_one(); });
  for (size_t i = 0; i < scenario_.partitions; ++i) world_.at(some_time(), [this] { part_one(); });
  for (size_t i = 0; i < scenario_.falls; ++i) world_.at(some_time(), [this] { let_fall(); });
  if (scenario_.manager_returns > Time{}) {
    world_.at(scenario_.manager_leaves, [this] { world_.crash(ps::kManager); });
    world_.at(scenario_.manager_returns, [this] { world_.restart(ps::kManager); });
  }
  if (scenario_.joins)
    world_.at(some_time(), [this] {
      note(fmt::format("server {} comes", job_.servers));
      ++joins_;
      start_server_(job_.servers);
    });
  if (scenario_.blackout) world_.at(some_time(), [this] { black_out(); });
  if (scenario_.server_dies) world_.at(some_time(), [this] { end_for_good(Role::Server); });
  if (scenario_.worker_dies) world_.at(some_time(), [this] { end_for_good(Role::Worker); });
  if (scenario_.leaves) world_.at(some_time(), [this] { let_go(); });
}

NodeId Misfortunes::pick_node() {
  std::vector<NodeId> ids = world_.ids();
  std::erase_if(ids, [this](NodeId id) { return gone_.contains(id); });
  const uint64_t dice = world_.random().below(10);
  const Role role = dice < 5 ? Role::Server : dice < 8 ? Role::Worker : Role::Manager;
  std::erase_if(ids, [&](NodeId id) { return id.role != role; });
  if (ids.empty()) return ps::kManager;
  return ids[world_.random().below(ids.size())];
}

/// Whether the manager may take the server for dead. After a partition it may do so until it hears
/// from the server again.
bool Misfortunes::is_troubled(NodeId id) {
  if (!world_.is_up(id) || world_.is_cut(id, ps::kManager)) return true;
  return manager() && manager()->silence_of(id) > job_.timing.dead_after / 2;
}

/// With copies = k, at most k servers are in trouble at once, and each range has one that is well:
/// that is what copies promise for. Without, anything may happen.
bool Misfortunes::may_trouble(NodeId id) {
  if (id.role != Role::Server || job_.copies == 0) return true;
  if (!manager()) return false;
  std::set<uint32_t> holders;
  for (const ps::Assignment& assignment : manager()->view().ranges) {
    for (const ps::Member member : assignment.chain) holders.insert(member.index);
    if (assignment.joiner) holders.insert(assignment.joiner->index);
  }
  const auto troubled =
      std::ranges::count_if(holders, [&](uint32_t index) { return is_troubled(server_id(index)); });
  if (static_cast<uint32_t>(troubled) >= job_.copies) return false;
  for (const ps::Assignment& assignment : manager()->view().ranges) {
    const bool kept = std::ranges::any_of(assignment.chain, [&](ps::Member member) {
      const auto* server = world_.node<ps::Server>(server_id(member.index));
      return server_id(member.index) != id && !is_troubled(server_id(member.index)) &&
             server->life() == member.life;
    });
    if (!kept) return false;
  }
  return true;
}

void Misfortunes::crash_one() {
  crash(pick_node());
}

/// The moment that chains are for: a head knows more than its successor, and dies, and with it
/// a worker that could have said it again.
void Misfortunes::let_fall() {
  if (!manager()) return;
  const auto& ranges = manager()->view().ranges;
  const auto& chain = ranges[world_.random().below(ranges.size())].chain;
  if (chain.size() < 2) return;
  const NodeId head = server_id(chain[0].index), second = server_id(chain[1].index);
  if (!may_trouble(head)) return;
  note(fmt::format("{} is cut off from {}, its successor", ps::name_of(head), ps::name_of(second)));
  ++falls_;
  world_.cut(head, second);
  world_.at(world_.now() + milliseconds(world_.random().between(2, 40)), [this, head, second] {
    crash(head);
    crash({Role::Worker, static_cast<uint32_t>(world_.random().below(job_.workers))});
    world_.heal(head, second);
  });
}

void Misfortunes::crash(NodeId id) {
  if (!world_.is_up(id) || !may_trouble(id)) return;
  note(fmt::format("{} crashes", ps::name_of(id)));
  ++crashes_;
  world_.crash(id);
  if (world_.random().chance(0.5))  // its streams end, as those of a dead process do
    world_.at(world_.now() + Time(world_.random().between(50, 3000)), [this, id] {
      if (manager() && !world_.is_up(id)) manager()->on_stream_lost(id);
    });
  world_.at(world_.now() + milliseconds(world_.random().between(3, 200)), [this, id] {
    if (gone_.contains(id)) return;
    note(fmt::format("{} restarts", ps::name_of(id)));
    world_.restart(id);
  });
}

void Misfortunes::black_out() {
  note("all servers crash");
  for (const NodeId id : world_.ids()) {
    if (id.role != Role::Server || gone_.contains(id)) continue;
    world_.crash(id);
    world_.at(world_.now() + milliseconds(world_.random().between(3, 100)), [this, id] {
      if (!gone_.contains(id)) world_.restart(id);
    });
  }
}

void Misfortunes::end_for_good(Role role) {
  const NodeId id{role, job_.servers > 1 && role == Role::Server ? 1U : 0U};
  if (!may_trouble(id)) return;
  note(fmt::format("{} dies for good", ps::name_of(id)));
  world_.crash(id);
  gone_.insert(id);
}

/// Cuts one node off from another or from all.
void Misfortunes::part_one() {
  const NodeId id = pick_node();
  const bool from_all = world_.random().chance(0.4);
  std::vector<NodeId> others = world_.ids();
  std::erase(others, id);
  if (!from_all) others = {others[world_.random().below(others.size())]};
  if (id != ps::kManager && std::ranges::find(others, ps::kManager) != others.end() &&
      !may_trouble(id))
    return;
  if (id == ps::kManager && !from_all && !may_trouble(others[0])) return;
  note(fmt::format("{} is cut off from {}", ps::name_of(id),
                   from_all ? "all" : ps::name_of(others[0])));
  ++partitions_;
  for (const NodeId other : others) world_.cut(id, other);
  world_.at(world_.now() + milliseconds(world_.random().between(5, 250)), [this, id, others] {
    for (const NodeId other : others) world_.heal(id, other);
  });
}

void Misfortunes::let_go() {
  auto* server = world_.node<ps::Server>(server_id(0));
  if (!server || job_.servers == 1) return;
  note("server 0 leaves");
  server->leave();
  watch_leaving();
}

/// When the job is over, only those who stop all of it let a server go.
void Misfortunes::watch_leaving() {
  auto* server = world_.node<ps::Server>(server_id(0));
  if (server && server->may_stop() && !server->view().over) {
    note("server 0 has left");
    ++departures_;
    gone_.insert(server_id(0));
    return world_.crash(server_id(0));
  }
  world_.at(world_.now() + milliseconds(10), [this] { watch_leaving(); });
}

}  // namespace trireme::sim
