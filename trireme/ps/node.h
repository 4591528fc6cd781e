#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/ps/environment.h"
#include "trireme/ps/job.h"
#include "trireme/ps/protocol.h"

namespace trireme::ps {

/// What every role does alike: it checks the header of a message, knows the view and its own life,
/// and counts what it refused.
class Node {
 public:
  Node(NodeId id, const JobConfig& job, Environment& environment)
      : job_(job), id_(id), environment_(environment) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// Takes one message. What is no message of this job changes nothing and is counted.
  void receive(const Frame& message);
  /// To be called every few milliseconds.
  virtual void tick() = 0;
  /// The last stream to another node has ended: it may be dead, or have no more to say for now.
  virtual void on_stream_lost(NodeId /*node*/) {}
  /// What Environment::save has begun is done.
  virtual void on_saved(const SnapshotPart& /*part*/, std::string /*contents*/) {}

  virtual const View& view() const { return view_; }
  Life life() const { return life_; }
  /// Messages that were refused or passed over, by why.
  using Counts = std::map<std::string, uint64_t>;
  virtual Counts refused() const { return refused_; }

 protected:
  /// May take what it wants out of the message.
  virtual void handle(Message& message) = 0;
  void send_to(NodeId to, const Body& body);
  /// Environment::way_to, for such a message.
  uint64_t way_to(NodeId to, const Body& body);
  void count(const std::string& why) { ++refused_[why]; }

  const JobConfig& job_;
  const NodeId id_;
  Environment& environment_;
  View view_;
  Life life_ = 0;

 private:
  uint32_t lane_of(NodeId to, const Body& body) const;

  Counts refused_;
};

/// The range that a message between servers and workers is about; nothing: it is about none.
std::optional<RangeId> range_of(const Body& body);

/// The manager cannot write its log: what it has decided since is not there, and nobody may hear of
/// it. This ends the manager, whatever it was about to answer.
class LogError : public CommError {
  using CommError::CommError;
};

/// The manager does not let this node take part, and says why.
class RejectedError : public Error {
  using Error::Error;
};

/// A server or a worker: registers with the manager, sends heartbeats and follows the view.
class ManagedNode : public Node {
 public:
  using Node::Node;
  void tick() override;
  /// The manager soon takes whoever lost its stream for dead, unless it says something.
  void on_stream_lost(NodeId node) override {
    if (node == kManager) has_said_ = false;
  }
  /// Where a server's lanes listen, before the first tick.
  void set_endpoints(std::vector<Endpoint> lanes) { endpoints_ = std::move(lanes); }
  /// The other ranks of a worker do not register: they speak in the life of the worker's first
  /// rank, and hear the view from servers and manager.
  void adopt(Life life, const View& view);
  /// Asks to be given no more work, and to be relieved of what it has.
  void leave() { leaving_ = true; }

 protected:
  /// Handles what concerns the life and the view; returns whether the message was one of those.
  bool handle_membership(const Message& message);
  virtual void on_view() = 0;
  /// This life is over; whatever belonged to it must go.
  virtual void on_life_ended() = 0;
  void end_life();
  virtual Figures figures() const { return {}; }

  bool leaving_ = false;

 private:
  bool fits(const View& view) const;
  void take_view(const View& view);
  void begin_life();

  std::vector<Endpoint> endpoints_;
  bool adopts_ = false;
  uint64_t nonce_ = 0;
  Time said_at_{};
  bool has_said_ = false;
};

}  // namespace trireme::ps
