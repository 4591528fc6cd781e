#include "trireme/ps/node.h"

#include "trireme/core/error.h"

namespace trireme::ps {

void Node::receive(std::string_view bytes) {
  Message message;
  try {
    message = decode(bytes);
  } catch (const CommError&) {
    return count("malformed");
  }
  if (message.header.job != job_.id()) return count("of another job");
  handle(message);
}

void Node::send_to(NodeId to, const Body& body) {
  environment_.send(
      to,
      encode({.job = job_.id(), .generation = view_.generation, .from = id_, .life = life_}, body));
}

void ManagedNode::begin_life() {
  nonce_ = environment_.random();
  life_ = 0;
  view_ = {};
  has_said_ = false;
}

void ManagedNode::tick() {
  if (nonce_ == 0) begin_life();
  const Time now = environment_.now();
  if (has_said_ && now - said_at_ < job_.timing.heartbeat) return;
  has_said_ = true;
  said_at_ = now;
  if (life_ == 0)
    send_to(kManager, Hello{nonce_});
  else
    send_to(kManager, Heartbeat{view_.version, leaving_});
}

bool ManagedNode::handle_membership(const Message& message) {
  if (const auto* welcome = std::get_if<Welcome>(&message.body)) {
    if (welcome->nonce != nonce_ || life_ != 0 || welcome->view.ranges.size() != job_.ranges)
      return true;
    life_ = welcome->life;
    view_ = welcome->view;
    on_view();
    return true;
  }
  if (const auto* change = std::get_if<ViewChange>(&message.body)) {
    if (life_ != 0) take_view(change->view);
    return true;
  }
  if (const auto* ended = std::get_if<LifeEnded>(&message.body)) {
    if (life_ == 0 || ended->life != life_) return true;
    on_life_ended();
    begin_life();
    return true;
  }
  return false;
}

void ManagedNode::take_view(const View& view) {
  if (view.version <= view_.version || view.ranges.size() != job_.ranges) return;
  view_ = view;
  on_view();
}

}  // namespace trireme::ps
