#pragma once

#include <functional>
#include <set>
#include <string>

#include "sim/scenario.h"
#include "sim/world.h"

namespace trireme::sim {

/// Crashes, partitions, servers that come and go: what happens to the nodes of a scenario, at times
/// that its seed decides.
class Misfortunes {
 public:
  Misfortunes(const Scenario& scenario, World& world, std::function<void(uint32_t)> start_server)
      : scenario_(scenario),
        job_(scenario.job),
        world_(world),
        start_server_(std::move(start_server)) {}

  void plan();
  /// Nodes that do not come back.
  const std::set<NodeId>& gone() const { return gone_; }
  /// What of all that was planned has really happened.
  uint64_t crashes() const { return crashes_; }
  uint64_t partitions() const { return partitions_; }
  uint64_t falls() const { return falls_; }
  uint64_t joins() const { return joins_; }
  uint64_t departures() const { return departures_; }

 private:
  ps::Manager* manager() { return world_.node<ps::Manager>(ps::kManager); }
  void note(const std::string& line) {
    if (world_.on_note) world_.on_note(line);
  }
  Time some_time();
  NodeId pick_node();
  bool is_troubled(NodeId id);
  bool may_trouble(NodeId id);
  void crash_one();
  void let_fall();
  void crash(NodeId id);
  void black_out();
  void end_for_good(Role role);
  void part_one();
  void let_go();
  void watch_leaving();

  const Scenario& scenario_;
  const ps::JobConfig& job_;
  World& world_;
  std::function<void(uint32_t)> start_server_;
  std::set<NodeId> gone_;
  uint64_t crashes_ = 0, partitions_ = 0, falls_ = 0, joins_ = 0, departures_ = 0;
};

inline NodeId server_id(uint32_t index) {
  return {Role::Server, index};
}

}  // namespace trireme::sim
