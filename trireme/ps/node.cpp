#include "trireme/ps/node.h"

#include <algorithm>

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
  try {
    handle(message);
  } catch (const CommError& error) {
    count("malformed");
    environment_.note(fmt::format("{}: a message from {} is refused: {}", name_of(id_),
                                  name_of(message.header.from), error.what()));
  }
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
    const bool is_answer = message.header.from == kManager && welcome->nonce == nonce_;
    if (!is_answer || life_ != 0 || !fits(welcome->view)) return true;
    life_ = welcome->life;
    view_ = welcome->view;
    on_view();
    return true;
  }
  if (const auto* change = std::get_if<ViewChange>(&message.body)) {
    if (life_ != 0 && message.header.from.role != Role::Worker) take_view(change->view);
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

bool ManagedNode::fits(const View& view) const {
  return view.ranges.size() == job_.ranges &&
         std::ranges::none_of(view.ranges, [](const Assignment& assignment) {
           return assignment.joiner && assignment.chain.empty();
         });
}

void ManagedNode::take_view(const View& view) {
  if (view.version <= view_.version || !fits(view)) return;
  view_ = view;
  on_view();
}

}  // namespace trireme::ps
