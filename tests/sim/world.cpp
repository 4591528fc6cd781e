#include "sim/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace trireme::sim {

class World::HostEnvironment final : public ps::Environment {
 public:
  HostEnvironment(World& world, NodeId id, Disk& disk) : world_(world), id_(id), disk_(disk) {}
  Time now() override { return world_.now_; }
  uint64_t random() override { return world_.random_.next() | 1; }
  void send(NodeId to, uint32_t, ps::Frame message) override {
    world_.send(id_, to, message.flat());
  }
  void append(std::string_view record) override {
    disk_.log += record;
    may_die();
  }
  void sync() override {
    disk_.synced = disk_.log.size();
    may_die();
  }
  std::string read_log() override { return disk_.log; }
  void replace_log(std::string_view log) override {
    disk_.log = log;
    disk_.synced = log.size();
  }
  void begin(const ps::SnapshotOrder&) override {}
  void save(const ps::SnapshotPart& part, ps::RangeState::Image image) override {
    world_.save(id_, part, image.frame().flat());
  }
  void complete(const ps::SnapshotOrder& order, const std::vector<std::string>&) override {
    world_.complete_.insert(order.snapshot);
  }
  void prune(const ps::SnapshotOrder&) override {}
  void abandon(const ps::SnapshotOrder&) override {}
  std::optional<ps::RangeState::Image> load(const ps::SnapshotPart& part) override {
    if (!world_.complete_.contains(part.snapshot)) return {};
    return ps::RangeState::Image::parse(world_.saved_.at(part));
  }
  void note(const std::string& line) override {
    if (world_.on_note) world_.on_note(line);
  }

 private:
  void may_die() {
    if (world_.lose_power > 0 && world_.random_.chance(world_.lose_power)) throw PowerLost();
  }

  World& world_;
  NodeId id_;
  Disk& disk_;
};

void World::add(NodeId id, Maker make) {
  auto host = std::make_unique<Host>();
  host->make = std::move(make);
  host->environment = std::make_unique<HostEnvironment>(*this, id, host->disk);
  hosts_[id] = std::move(host);
  restart(id);
}

void World::crash(NodeId id) {
  Host& host = *hosts_.at(id);
  if (!host.node) return;
  host.node.reset();
  const size_t torn = host.disk.log.size() - host.disk.synced;
  host.disk.log.resize(host.disk.synced + random_.below(torn + 1));
  host.disk.synced = host.disk.log.size();
}

void World::restart(NodeId id) {
  Host& host = *hosts_.at(id);
  if (host.node) return;
  host.node = host.make(*host.environment);
  tick_later(id, ++host.starts);
}

bool World::is_up(NodeId id) const {
  const auto found = hosts_.find(id);
  return found != hosts_.end() && found->second->node;
}

std::vector<NodeId> World::ids() const {
  std::vector<NodeId> ids;
  for (const auto& [id, host] : hosts_) ids.push_back(id);
  return ids;
}

void World::at(Time time, std::function<void()> act) {
  queue_.push({time, events_++, std::move(act)});
}

void World::tick_later(NodeId id, uint64_t start) {
  const Time wait(random_.between(3000, 5000));
  at(now_ + wait, [this, id, start] {
    Host& host = *hosts_.at(id);
    if (!host.node || host.starts != start) return;
    survive(id, [&] { host.node->tick(); });
    tick_later(id, start);
  });
}

/// The node may die of it; then it comes back after a while.
void World::survive(NodeId id, const std::function<void()>& act) {
  try {
    act();
  } catch (const PowerLost&) {
    if (on_note) on_note(fmt::format("{} dies while it writes its log", ps::name_of(id)));
    ++happened_.power_losses;
    crash(id);
    at(now_ + Time(random_.between(3'000, 100'000)), [this, id] { restart(id); });
  }
}

void World::send(NodeId from, NodeId to, std::string message) {
  if (on_send) on_send(from, to, message);
  if (!hosts_.contains(to)) return;
  const bool to_itself = from == to;
  if (!to_itself && is_cut(from, to)) return void(++happened_.cut);
  if (!to_itself && random_.chance(weather.lose)) return void(++happened_.lost);
  if (!to_itself && random_.chance(weather.repeat)) {
    ++happened_.repeated;
    deliver_later(from, to, message);
  }
  deliver_later(from, to, message);
}

void World::deliver_later(NodeId from, NodeId to, const std::string& message) {
  const bool is_late = random_.chance(weather.late);
  happened_.late += is_late ? 1 : 0;
  const Time most = is_late ? weather.latest : weather.usual;
  const Time delay(random_.between(20, static_cast<uint64_t>(most.count())));
  at(now_ + delay, [this, from, to, message] {
    Host& host = *hosts_.at(to);
    if (host.node && !is_cut(from, to)) survive(to, [&] { host.node->receive(message); });
  });
}

/// Writing takes a while; a node that dies meanwhile has not saved its part.
void World::save(NodeId id, const ps::SnapshotPart& part, std::string bytes) {
  const uint64_t start = hosts_.at(id)->starts;
  at(now_ + Time(random_.between(100, 8000)), [this, id, part, start, bytes] {
    Host& host = *hosts_.at(id);
    if (!host.node || host.starts != start) return;
    saved_[part] = bytes;
    host.node->on_saved(part, "saved");
  });
}

bool World::run(Time until, const std::function<bool()>& done) {
  while (!queue_.empty() && queue_.top().time <= until) {
    if (events_ > kMostEvents)
      throw std::runtime_error(
          fmt::format("{} events and no end: messages beget messages", events_));
    const Event event = queue_.top();
    queue_.pop();
    now_ = event.time;
    event.act();
    if (done()) return true;
  }
  now_ = until;
  return done();
}

}  // namespace trireme::sim
