#pragma once

#include <map>
#include <memory>
#include <utility>

#include "trireme/ps/node.h"
#include "trireme/ps/replica.h"
#include "trireme/ps/rounds.h"

namespace trireme::ps {

/// Holds the ranges that the view gives it. Ranges share nothing but the view, so a process may
/// run them on several threads.
class Server final : public ManagedNode, private ReplicaHost {
 public:
  Server(uint32_t index, const JobConfig& job, Environment& environment)
      : ManagedNode({Role::Server, index}, job, environment), rounds_(job) {}

  void tick() override;

  /// The copy of a range, or nullptr.
  const Replica* replica(TableId table, RangeId range) const;
  size_t bytes() const;
  const View& view() const override { return view_; }
  /// After leave(): whether no range needs this server any more.
  bool may_stop() const { return leaving_ && life_ != 0 && replicas_.empty(); }

 private:
  using Part = std::pair<TableId, RangeId>;

  void handle(Message& message) override;
  void on_view() override;
  void on_life_ended() override;

  Environment& environment() override { return environment_; }
  Member self() const override { return {id_.index, life_}; }
  void send(NodeId to, const Body& body) override { send_to(to, body); }
  void refuse(NodeId to, Refusal refusal) override;
  std::string no_room_for(size_t bytes) const override;

  void dispatch(Message& message);
  void on_request(Request request, NodeId from);
  void on_whole(const RoundWhole& whole);
  void report_joined();
  Replica* find(TableId table, RangeId range);

  std::map<Part, std::unique_ptr<Replica>> replicas_;
  Rounds rounds_;
  uint32_t generation_ = 0;
};

}  // namespace trireme::ps
