#include "trireme/ps/connections.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "trireme/core/env.h"
#include "trireme/core/error.h"

namespace trireme::ps {

namespace {

constexpr uint64_t kWake = 0, kFirstAcceptor = 1, kFirstStream = 8;
constexpr std::chrono::milliseconds kDialPause{20};
/// What may wait for one peer.
constexpr size_t kMostQueued = size_t{2} << 30;
/// Who has connected and not proven itself yet: each costs a descriptor.
constexpr size_t kMostStrangers = 128;
/// Roles and lanes are told by name. Ranks tell processes of one role apart.
constexpr int kMostNodes = 1 << 20;

std::string role_name(LaneId who) {
  switch (who.node.role) {
    case Role::Manager: return "ps-manager";
    case Role::Server: return fmt::format("ps-server.{}", who.lane);
    case Role::Worker: return "ps-worker";
    default: return "ps-watcher";
  }
}

std::vector<std::string> role_names(uint32_t lanes) {
  std::vector<std::string> names{"ps-manager", "ps-worker", "ps-watcher"};
  for (uint32_t lane = 0; lane < lanes; ++lane)
    names.push_back(role_name({{Role::Server, 0}, lane}));
  return names;
}

/// Throws CommError for an identity that no node has.
LaneId lane_of(const net::Identity& who, uint32_t lanes) {
  const auto index = static_cast<uint32_t>(who.rank);
  for (const Role role : {Role::Manager, Role::Worker, Role::Watcher})
    if (who.role == role_name({{role, 0}, 0})) return {{role, index}, 0};
  for (uint32_t lane = 0; lane < lanes; ++lane)
    if (who.role == role_name({{Role::Server, 0}, lane})) return {{Role::Server, index}, lane};
  throw CommError(fmt::format("says that it is a {}", who.role));
}

std::string random_name() {
  uint64_t words[2] = {};
  if (::getrandom(words, sizeof words, 0) != sizeof words) throw CommError("no random bytes");
  return fmt::format("trireme-ps-{:016x}{:016x}", words[0], words[1]);
}

}  // namespace

net::Identity Connections::identity() const {
  return {.job = options_.job,
          .role = role_name(options_.me),
          .rank = static_cast<int>(options_.me.node.index),
          .size = kMostNodes};
}

Connections::Connections(Options options, OnMessage on_message)
    : options_(std::move(options)),
      on_message_(std::move(on_message)),
      host_(net::host_key()),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      next_id_(kFirstStream) {
  epoll_.add(wake_.get(), EPOLLIN, kWake);
  if (!options_.listen) return;
  net::Listener listener(*options_.listen);
  endpoint_.tcp = listener.address().to_string();
  acceptors_.push_back(make_acceptor(listener.release(), false));
  if (options_.local) {
    const std::string name = random_name();
    endpoint_.local = "@" + name;
    endpoint_.host = host_;
    acceptors_.push_back(make_acceptor(net::listen_unix_abstract(name), true));
  }
  for (size_t i = 0; i < acceptors_.size(); ++i)
    epoll_.add(acceptors_[i].fd(), EPOLLIN, kFirstAcceptor + i);
}

Connections::~Connections() = default;

net::Acceptor Connections::make_acceptor(net::Fd listener, bool local) {
  using Users = net::Acceptor::Options::Users;
  return net::Acceptor(std::move(listener),
                       {.secret = options_.secret,
                        .me = identity(),
                        .roles = role_names(options_.lanes),
                        .most_strangers = kMostStrangers,
                        .users = local ? Users::Same : Users::Any},
                       [this, local](net::Socket socket, const net::Identity& who) {
                         welcome(std::move(socket), who, local);
                       });
}

int64_t Connections::num_turned_away() const {
  int64_t sum = 0;
  for (const net::Acceptor& one : acceptors_) sum += one.num_turned_away();
  return sum;
}

/// A peer has dialled and proven itself: from now on messages to it take this stream. Those that
/// wait for a stream of our own to be made move over.
void Connections::welcome(net::Socket socket, const net::Identity& who, bool local) {
  const LaneId peer = lane_of(who, options_.lanes);
  std::vector<Frame> waiting;
  if (const auto before = newest_.find(peer); before != newest_.end())
    if (const auto call = calls_.find(before->second); call != calls_.end())
      waiting = std::exchange(call->second.waiting, {});
  const uint64_t id = next_id_++;
  open(id, peer, std::move(socket), local);
  Open& opened = streams_.at(id);
  for (const Frame& frame : waiting) opened.stream->send(frame);
  flush(id, opened);
}

void Connections::open(uint64_t id, LaneId peer, net::Socket socket, bool local) {
  std::optional<Stream::Local> lending;
  if (local)
    lending = {
        .arena = options_.arena ? options_.arena : std::make_shared<Arena>(),
        .peer_lends = peer.node.role == Role::Worker ? Payload::Lent::Yes : Payload::Lent::No,
        .wake = [this] { wake(); }};
  auto stream = std::make_unique<Stream>(std::move(socket), buffers_, std::move(lending));
  epoll_.add(stream->fd(), EPOLLIN, id);
  streams_[id] = {peer, std::move(stream)};
  newest_[peer] = id;
}

/// Returns whether the message is on its way to a stream that is being made.
bool Connections::dial(LaneId to, const Frame& first) {
  const auto now = net::Clock::now();
  const auto again = dial_again_.find(to);
  if (again != dial_again_.end() && now < again->second) return false;
  dial_again_[to] = now + kDialPause;
  const auto endpoint = options_.find(to);
  if (!endpoint) return false;
  const bool local = options_.local && !endpoint->local.empty() && endpoint->host == host_;
  net::Fd fd = net::start_connect(local ? net::Address{endpoint->local, 0}
                                        : net::parse_address(endpoint->tcp));
  if (!fd) return false;
  const uint64_t id = next_id_++;
  epoll_.add(fd.get(), EPOLLOUT, id);
  calls_[id] = {.peer = to,
                .local = local,
                .connecting = std::move(fd),
                .prove_by = now + options_.prove_within,
                .waiting = {first},
                .waiting_bytes = first.bytes(),
                .events = EPOLLOUT};
  newest_[to] = id;
  return true;
}

void Connections::send(LaneId to, const Frame& message) {
  if (to == options_.me) {
    to_myself_.push_back(message);
    return;
  }
  const auto found = newest_.find(to);
  if (found == newest_.end()) {
    try {
      if (dial(to, message)) sent_bytes_ += static_cast<int64_t>(message.bytes());
    } catch (const Error&) {  // an address that cannot be dialled: as if nobody answered there
    }
    return;
  }
  if (const auto found_call = calls_.find(found->second); found_call != calls_.end()) {
    Call& call = found_call->second;
    if (call.waiting_bytes > kMostQueued) return;
    sent_bytes_ += static_cast<int64_t>(message.bytes());
    call.waiting_bytes += message.bytes();
    call.waiting.push_back(message);
    return;
  }
  Open& open = streams_.at(found->second);
  if (open.stream->queued_bytes() > kMostQueued) return;
  sent_bytes_ += static_cast<int64_t>(message.bytes());
  open.stream->send(message);
  flush(found->second, open);
}

uint64_t Connections::way_to(LaneId to) const {
  const auto found = newest_.find(to);
  if (found == newest_.end()) return 0;
  const auto open = streams_.find(found->second);
  const size_t queued = open != streams_.end() ? open->second.stream->queued_bytes()
                                               : calls_.at(found->second).waiting_bytes;
  return queued > kMostQueued ? 0 : found->second;
}

bool Connections::step(net::Deadline until) {
  for (const auto& [id, call] : calls_) until = std::min(until, call.prove_by);
  for (const net::Acceptor& one : acceptors_) until = std::min(until, one.due());
  bool moved = has_waiting();
  if (moved) until = net::Deadline::min();
  const std::set<uint64_t> unread = std::exchange(unread_, {});
  std::array<epoll_event, 64> events;
  for (const epoll_event& one : epoll_.wait(events, until)) {
    moved = true;
    const uint64_t id = one.data.u64;
    if (unread.contains(id)) continue;
    if (id >= kFirstStream) {
      on_event(id);
    } else if (id == kWake) {
      uint64_t count = 0;
      (void)!::read(wake_.get(), &count, sizeof count);
      for (auto& [number, open] : streams_) flush(number, open);  // payloads were released
    }
  }
  for (const uint64_t id : unread) on_event(id);
  for (const Frame& message : std::exchange(to_myself_, {})) on_message_(message);
  for (net::Acceptor& one : acceptors_) one.step();
  std::vector<uint64_t> late;
  for (const auto& [id, call] : calls_)
    if (call.prove_by < net::Clock::now()) late.push_back(id);
  for (const uint64_t id : late) drop(id);
  if (!loans_.empty()) forget_loans();
  return moved;
}

void Connections::wake() noexcept {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void Connections::on_event(uint64_t id) {
  try {
    if (const auto call = calls_.find(id); call != calls_.end()) return prove(id, call->second);
    const auto found = streams_.find(id);
    if (found == streams_.end()) return;  // dropped in this turn
    if (found->second.stream->read(on_message_) == Stream::Left::Some) unread_.insert(id);
    // What was read may have made other streams the newest, but drops none.
    flush(id, found->second);
  } catch (const CommError&) {  // the peer is gone, or says what no node says
    drop(id);
  }
}

/// Goes on with a stream that this node dials.
void Connections::prove(uint64_t id, Call& call) {
  if (call.connecting) {
    int error = 0;
    socklen_t bytes = sizeof error;
    ::getsockopt(call.connecting.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) throw CommError("nobody listens there");
    epoll_.remove(call.connecting.get());
    call.events = 0;
    call.talk.emplace(net::Socket(std::move(call.connecting)),
                      net::Handshake(net::Handshake::Side::Client, options_.secret, identity()),
                      call.prove_by);
  }
  call.talk->step();
  if (!call.talk->is_over()) {
    const uint32_t events = call.talk->interest();
    if (call.events == 0)
      epoll_.add(call.talk->fd(), events, id);
    else if (call.events != events)
      epoll_.change(call.talk->fd(), events, id);
    call.events = events;
    return;
  }
  const net::Handshake& told = call.talk->handshake();
  if (told.state() != net::Handshake::State::Proven ||
      lane_of(told.peer(), options_.lanes) != call.peer) {
    failure_ = told.error().empty() ? "is another node" : told.error();
    throw CommError("somebody else listens there");
  }
  if (call.events != 0) epoll_.remove(call.talk->fd());
  Call done = std::move(calls_.extract(id).mapped());
  const uint64_t newest = newest_.contains(done.peer) ? newest_.at(done.peer) : id;
  open(id, done.peer, done.talk->release(), done.local);
  newest_[done.peer] = newest;  // the peer may have dialled meanwhile
  Open& opened = streams_.at(id);
  for (const Frame& frame : done.waiting) opened.stream->send(frame);
  flush(id, opened);
}

void Connections::flush(uint64_t id, Open& open) {
  const bool waits = !open.stream->flush();
  if (waits == open.waits_to_send) return;
  open.waits_to_send = waits;
  epoll_.change(open.stream->fd(), waits ? EPOLLIN | EPOLLOUT : EPOLLIN, id);
}

void Connections::drop(uint64_t id) {
  LaneId peer;
  bool was_open = false;
  if (const auto call = calls_.find(id); call != calls_.end()) {
    peer = call->second.peer;
    calls_.erase(call);  // closing a descriptor takes it out of the set
  } else if (const auto found = streams_.find(id); found != streams_.end()) {
    peer = found->second.peer;
    was_open = true;
    if (Stream::Loan loan = found->second.stream->take_loan(); !loan.payloads.empty())
      loans_.push_back(std::move(loan));
    streams_.erase(found);
  } else {
    return;
  }
  const auto newest = newest_.find(peer);
  if (newest != newest_.end() && newest->second == id) {
    newest_.erase(newest);
    for (const auto& [other, open] : streams_)  // an older one may still be good
      if (open.peer == peer) newest_[peer] = other;
  }
  if (was_open && on_lost && !newest_.contains(peer)) on_lost(peer.node);
}

/// Whoever borrowed memory over a stream that has ended may read it as long as it lives.
void Connections::forget_loans() {
  std::erase_if(loans_, [](const Stream::Loan& loan) {
    pollfd process{loan.process.get(), POLLIN, 0};
    return !loan.process || ::poll(&process, 1, 0) > 0;
  });
}

}  // namespace trireme::ps
