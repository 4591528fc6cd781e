#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "trireme/ps/node.h"
#include "trireme/ps/replica.h"
#include "trireme/ps/rounds.h"

namespace trireme::ps {

/// What the lanes of a server have together. From any thread.
struct ServerTotals {
  std::atomic<uint64_t> bytes = 0;     ///< of all ranges
  std::atomic<uint64_t> replicas = 0;  ///< that lanes hold
  std::atomic<uint64_t> rows = 0, pushes = 0, pulls = 0, behind = 0, refused = 0;
  std::atomic<uint64_t> pid = 0;  ///< of the process
};

/// What the manager has told the server: passed on to its lanes.
struct Standing {
  Life life = 0;  ///< 0: the last life is over
  View view = {};
};

/// Some of a server's ranges: every range belongs to one lane, and lanes share nothing but the
/// totals. In a process each has a thread and streams of its own; a simulator runs them one after
/// the other.
class ServerLane final : public Node, private ReplicaHost {
 public:
  ServerLane(uint32_t server, uint32_t lane, const JobConfig& job, Environment& environment,
             std::shared_ptr<Memory> memory, ServerTotals& totals)
      : Node({Role::Server, server}, job, environment),
        lane_(lane),
        memory_(std::move(memory)),
        totals_(totals),
        rounds_(job) {}

  void tick() override;
  void on_saved(const SnapshotPart& part, std::string contents) override;
  /// Follows what the server has heard from the manager.
  void follow(const Standing& standing);
  void handle(Message& message) override;

  /// The copy of a range, or nullptr.
  const Replica* replica(TableId table, RangeId range) const;
  const View& view() const override { return view_; }

 private:
  using Part = std::pair<TableId, RangeId>;

  Environment& environment() override { return environment_; }
  Member self() const override { return {id_.index, life_}; }
  void send(NodeId to, const Body& body) override { send_to(to, body); }
  void refuse(NodeId to, Refusal refusal) override;
  uint64_t room_bytes() const override;
  void grew(uint64_t bytes) override;
  std::string describe_memory() const override;

  void drop_all();
  void follow_ranges();
  void install(Part part);
  void build_missing();
  void dispatch(Message& message);
  void on_request(Request request, NodeId from);
  void on_whole(const RoundWhole& whole);
  void report_joined();
  void count_figures();
  bool coordinates() const;
  Replica* find(TableId table, RangeId range);

  const uint32_t lane_;
  std::shared_ptr<Memory> memory_;
  ServerTotals& totals_;
  std::map<Part, std::unique_ptr<Replica>> replicas_;
  std::set<Part> missing_;  ///< ranges of which this server has to read or make its first copy
  Rounds rounds_;           ///< of lane 0
  Figures counted_;
  uint64_t counted_replicas_ = 0;
};

/// A server as the manager knows it: its life, its heartbeats, the view. It passes the view on to
/// its lanes, which do the work.
///
///   manager <--> Server ── standing ──> lane 0   ranges 0, 2, 4 ... <--> workers, other servers
///                                  ╰──> lane 1   ranges 1, 3, 5 ... <-->
class Server final : public ManagedNode {
 public:
  using Tell = std::function<void(const Standing&)>;

  /// `lanes`: those that run on this node's thread, with the first of the job's lanes among them.
  /// `others`: how to tell those that run elsewhere.
  Server(uint32_t index, const JobConfig& job, Environment& environment,
         std::vector<std::unique_ptr<ServerLane>> lanes, std::shared_ptr<ServerTotals> totals,
         Tell others = {});
  /// All lanes on this thread.
  Server(uint32_t index, const JobConfig& job, Environment& environment);

  void tick() override;
  void on_saved(const SnapshotPart& part, std::string contents) override;

  const Replica* replica(TableId table, RangeId range) const;
  size_t bytes() const { return totals_->bytes; }
  /// By the lanes of this thread, too.
  Counts refused() const override;
  /// Whether no range needs this server any more: the job is over, or, after leave(), others have
  /// its ranges.
  bool may_stop() const {
    return view_.over || (leaving_ && life_ != 0 && totals_->replicas == 0 && told_);
  }

 private:
  void handle(Message& message) override;
  void on_view() override;
  void on_life_ended() override;
  Figures figures() const override;
  void tell();
  ServerLane& lane_of(RangeId range) const;

  std::shared_ptr<ServerTotals> totals_;
  std::vector<std::unique_ptr<ServerLane>> lanes_;
  Tell others_;
  bool told_ = false;  ///< the lanes of this life
};

}  // namespace trireme::ps
