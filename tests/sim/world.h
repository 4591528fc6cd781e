#pragma once

#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/random.h"
#include "trireme/ps/manager.h"
#include "trireme/ps/server.h"

namespace trireme::sim {

using ps::NodeId;
using ps::Role;
using ps::Time;

/// What the network does to a message.
struct Weather {
  double lose = 0;
  double repeat = 0;
  double late = 0;  ///< a message that takes up to `latest`
  Time usual = std::chrono::microseconds(500);
  Time latest = std::chrono::milliseconds(40);
};

/// What has happened to messages and nodes.
struct Happenings {
  uint64_t lost = 0, repeated = 0, late = 0;  ///< messages
  uint64_t cut = 0;           ///< messages between nodes that cannot reach each other
  uint64_t power_losses = 0;  ///< of nodes that were writing their log
};

/// A log that survives a crash up to the last sync, and of what came after it any prefix.
struct Disk {
  std::string log;
  size_t synced = 0;
};

/// Thrown out of a node that is writing its log: it dies in the middle of what it does.
struct PowerLost {};

/// Virtual time, a network and disks, under one seed: nodes are told of messages and ticks in an
/// order that the seed decides. Nothing in here knows what the nodes do.
///
///   events by time:  | 1.2 ms deliver to server 1 | 1.3 ms tick of worker 0 | 2 ms fault | ...
class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {}

  using Maker = std::function<std::unique_ptr<ps::Node>(ps::Environment&)>;
  void add(NodeId id, Maker make);
  void crash(NodeId id);
  void restart(NodeId id);
  bool is_up(NodeId id) const;
  /// The running node, or nullptr.
  template <class T>
  T* node(NodeId id) const {
    const auto found = hosts_.find(id);
    return found == hosts_.end() ? nullptr : dynamic_cast<T*>(found->second->node.get());
  }
  std::vector<NodeId> ids() const;

  void cut(NodeId a, NodeId b) { cuts_.insert(std::minmax(a, b)); }
  void heal(NodeId a, NodeId b) { cuts_.erase(std::minmax(a, b)); }
  void heal_all() { cuts_.clear(); }
  bool is_cut(NodeId a, NodeId b) const { return cuts_.contains(std::minmax(a, b)); }

  void at(Time time, std::function<void()> act);
  /// A usual world has thousands of events, and one that stands still for 30 s a hundred thousand.
  static constexpr uint64_t kMostEvents = 300'000;
  /// Runs events until `done` says so or the time is over; returns whether `done` did.
  bool run(Time until, const std::function<bool()>& done);

  Time now() const { return now_; }
  Random& random() { return random_; }
  Weather weather;
  /// How often a node dies at a write to its log.
  double lose_power = 0;
  /// Sees every message as it is sent.
  std::function<void(NodeId from, NodeId to, const std::string& message)> on_send;
  std::function<void(const std::string& line)> on_note;
  uint64_t events() const { return events_; }
  const Happenings& happened() const { return happened_; }

 private:
  class HostEnvironment;
  struct Host {
    Maker make;
    std::unique_ptr<ps::Environment> environment;
    std::unique_ptr<ps::Node> node;
    uint64_t starts = 0;
    Disk disk;
  };
  struct Event {
    Time time;
    uint64_t order;
    std::function<void()> act;
    bool operator>(const Event& other) const {
      return std::tie(time, order) > std::tie(other.time, other.order);
    }
  };

  void send(NodeId from, NodeId to, std::string message);
  void deliver_later(NodeId from, NodeId to, const std::string& message);
  void tick_later(NodeId id, uint64_t start);
  void survive(NodeId id, const std::function<void()>& act);
  void save(NodeId id, const ps::SnapshotPart& part, std::string bytes);

  Random random_;
  Time now_{0};
  uint64_t events_ = 0;
  Happenings happened_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  std::map<NodeId, std::unique_ptr<Host>> hosts_;
  std::set<std::pair<NodeId, NodeId>> cuts_;
  std::map<ps::SnapshotPart, std::string> saved_;
  std::set<uint64_t> complete_;  ///< snapshots
};

}  // namespace trireme::sim
