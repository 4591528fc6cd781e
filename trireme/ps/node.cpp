#include "trireme/ps/node.h"

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme::ps {

namespace {

/// What a coordinator is told is for its lane, whatever range it is about.
struct RangeOf {
  std::optional<RangeId> operator()(const Request& body) const { return body.id.range; }
  std::optional<RangeId> operator()(const RoundWhole&) const { return 0; }
  template <class T>
  std::optional<RangeId> operator()(const T& body) const {
    if constexpr (requires {
                    body.table;
                    body.range;
                  })
      return body.range;
    else
      return std::nullopt;
  }
};

}  // namespace

std::optional<RangeId> range_of(const Body& body) {
  return std::visit(RangeOf(), body);
}

void Node::receive(const Frame& frame) {
  Message message;
  try {
    message = decode(frame);
  } catch (const CommError&) {
    return count("malformed");
  }
  if (message.header.job != job_.id()) return count("of another job");
  try {
    handle(message);
  } catch (const LogError&) {  // not of the message
    throw;
  } catch (const CommError& error) {
    count("malformed");
    environment_.note(fmt::format("{}: a message from {} is refused: {}", name_of(id_),
                                  name_of(message.header.from), error.what()));
  }
}

uint32_t Node::lane_of(NodeId to, const Body& body) const {
  return to.role == Role::Server ? job_.lane_of(range_of(body).value_or(0)) : 0;
}

uint64_t Node::way_to(NodeId to, const Body& body) {
  return environment_.way_to(to, lane_of(to, body));
}

void Node::send_to(NodeId to, const Body& body) {
  environment_.send(
      to, lane_of(to, body),
      encode({.job = job_.id(), .generation = view_.generation, .from = id_, .life = life_}, body));
}

void ManagedNode::adopt(Life life, const View& view) {
  adopts_ = true;
  if (life != life_) {
    if (life_ != 0) on_life_ended();
    view_ = {};
  }
  life_ = life;
  take_view(view);
}

void ManagedNode::begin_life() {
  nonce_ = environment_.random();
  life_ = 0;
  view_ = {};
  has_said_ = false;
}

void ManagedNode::tick() {
  if (adopts_ && life_ == 0) return;
  if (nonce_ == 0 && !adopts_) begin_life();
  const Time now = environment_.now();
  if (has_said_ && now - said_at_ < job_.timing.heartbeat) return;
  has_said_ = true;
  said_at_ = now;
  if (life_ == 0)
    send_to(kManager, Hello{nonce_, job_.fingerprint(), endpoints_});
  else
    send_to(kManager, Heartbeat{view_.version, leaving_, figures()});
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
  if (const auto* rejected = std::get_if<Rejected>(&message.body)) {
    if (message.header.from == kManager && rejected->nonce == nonce_ && life_ == 0)
      throw RejectedError(rejected->sentence);
    return true;
  }
  if (const auto* change = std::get_if<ViewChange>(&message.body)) {
    if (life_ != 0 && message.header.from.role != Role::Worker) take_view(change->view);
    return true;
  }
  if (const auto* ended = std::get_if<LifeEnded>(&message.body)) {
    if (life_ == 0 && nonce_ != 0 && ended->nonce == nonce_) begin_life();
    if (life_ == 0 || ended->life != life_) return true;
    // Two processes that are the same node would end each other's lives for ever.
    if (ended->replaced)
      throw RejectedError(fmt::format(
          "another process is {} now, and this one, of life {}, is not any more; start each once",
          name_of(id_), life_));
    end_life();
    return true;
  }
  return false;
}

void ManagedNode::end_life() {
  on_life_ended();
  if (adopts_)
    life_ = 0;
  else
    begin_life();
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
