#pragma once

#include <map>
#include <string>
#include <string_view>

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
  void receive(std::string_view bytes);
  /// To be called every few milliseconds.
  virtual void tick() = 0;

  const View& view() const { return view_; }
  Life life() const { return life_; }
  /// Messages that were refused or passed over, by why.
  const std::map<std::string, uint64_t>& refused() const { return refused_; }

 protected:
  /// May take what it wants out of the message.
  virtual void handle(Message& message) = 0;
  void send_to(NodeId to, const Body& body);
  void count(const std::string& why) { ++refused_[why]; }

  const JobConfig& job_;
  const NodeId id_;
  Environment& environment_;
  View view_;
  Life life_ = 0;

 private:
  std::map<std::string, uint64_t> refused_;
};

/// A server or a worker: registers with the manager, sends heartbeats and follows the view.
class ManagedNode : public Node {
 public:
  using Node::Node;
  void tick() override;
  /// Asks to be given no more work, and to be relieved of what it has.
  void leave() { leaving_ = true; }

 protected:
  /// Handles what concerns the life and the view; returns whether the message was one of those.
  bool handle_membership(const Message& message);
  virtual void on_view() = 0;
  /// This life is over; whatever belonged to it must go.
  virtual void on_life_ended() = 0;

  bool leaving_ = false;

 private:
  bool fits(const View& view) const;
  void take_view(const View& view);
  void begin_life();

  uint64_t nonce_ = 0;
  Time said_at_{};
  bool has_said_ = false;
};

}  // namespace trireme::ps
