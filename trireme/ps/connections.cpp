#include "trireme/ps/connections.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "trireme/core/error.h"

namespace trireme::ps {

namespace {

constexpr uint64_t kListener = 0, kWake = 1;
constexpr std::chrono::milliseconds kDialPause{20};
constexpr std::chrono::seconds kProveWithin{5};
/// Of one peer in one turn, so that none starves the others.
constexpr std::size_t kReadBytes = 1 << 20;

const char* role_name(Role role) {
  switch (role) {
    case Role::Manager: return "ps-manager";
    case Role::Server: return "ps-server";
    default: return "ps-worker";
  }
}

}  // namespace

int Nodes::rank_of(NodeId node) const {
  switch (node.role) {
    case Role::Manager: return 0;
    case Role::Server: return static_cast<int>(1 + node.index);
    default: return static_cast<int>(1 + servers + node.index);
  }
}

NodeId Nodes::node_of(int rank) const {
  if (rank < 0 || rank >= count())
    throw CommError(fmt::format("there is no node {} in a job of {} servers and {} workers", rank,
                                servers, workers));
  const auto number = static_cast<uint32_t>(rank);
  if (number == 0) return kManager;
  if (number <= servers) return {Role::Server, number - 1};
  return {Role::Worker, number - 1 - servers};
}

Connections::Connections(Options options, OnMessage on_message)
    : options_(std::move(options)),
      on_message_(std::move(on_message)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      buffer_(kReadBytes, '\0') {
  epoll_.add(wake_.get(), EPOLLIN, kWake);
  if (!options_.listen) return;
  net::Listener listener(*options_.listen);
  address_ = listener.address();
  const net::Acceptor::Options accepting{.secret = options_.secret,
                                         .me = {.job = options_.job,
                                                .role = role_name(options_.me.role),
                                                .rank = options_.nodes.rank_of(options_.me),
                                                .size = options_.nodes.count()},
                                         .roles = {"ps-manager", "ps-server", "ps-worker"}};
  acceptor_.emplace(
      listener.release(), accepting,
      [this](net::Socket socket, const net::Identity& who) { welcome(std::move(socket), who); });
  epoll_.add(acceptor_->fd(), EPOLLIN, kListener);
}

/// A peer has dialled and proven itself: from now on messages to it take this stream. Those that
/// wait for a stream of our own to be made move over.
void Connections::welcome(net::Socket socket, const net::Identity& who) {
  const NodeId peer = options_.nodes.node_of(who.rank);
  if (who.role != role_name(peer.role))
    throw CommError(fmt::format("rank {} says that it is a {}", who.rank, who.role));
  const uint64_t id = next_id_++;
  Stream& stream = streams_.try_emplace(id, Stream{.peer = peer}).first->second;
  stream.socket = std::move(socket);
  const auto before = newest_.find(peer);
  if (before != newest_.end()) {
    const auto old = streams_.find(before->second);
    if (old != streams_.end() && old->second.state != State::Open)
      stream.out = std::exchange(old->second.out, {});
  }
  newest_[peer] = id;
  flush(id, stream);
}

Connections::Stream* Connections::dial(NodeId to) {
  const auto now = net::Clock::now();
  const auto again = dial_again_.find(to);
  if (again != dial_again_.end() && now < again->second) return nullptr;
  dial_again_[to] = now + kDialPause;
  const auto address = options_.find(to);
  if (!address) return nullptr;
  net::Fd fd = net::start_connect(*address);
  if (!fd) return nullptr;
  const uint64_t id = next_id_++;
  Stream& stream = streams_.try_emplace(id, Stream{.peer = to}).first->second;
  stream.state = State::Connecting;
  stream.connecting = std::move(fd);
  newest_[to] = id;
  listen_for(id, stream, stream.connecting.get(), EPOLLOUT);
  return &stream;
}

void Connections::send(NodeId to, std::string message) {
  if (to == options_.me) {
    to_myself_.push_back(std::move(message));
    return;
  }
  Stream* stream = nullptr;
  const auto found = newest_.find(to);
  if (found != newest_.end()) stream = &streams_.at(found->second);
  try {
    if (stream == nullptr) stream = dial(to);
  } catch (const CommError&) {  // an address that cannot be dialled: as if nobody answered there
  }
  if (stream == nullptr) return;
  sent_bytes_ += static_cast<int64_t>(message.size());
  stream->out.push_back(net::frame_header(message.size()));
  stream->out.push_back(std::move(message));
  if (stream->state == State::Open) flush(newest_.at(to), *stream);
}

void Connections::step(net::Deadline until) {
  for (const auto& [id, stream] : streams_)
    if (stream.talk) until = std::min(until, stream.talk->prove_by());
  if (acceptor_) until = std::min(until, acceptor_->due());
  if (!to_myself_.empty()) until = net::Deadline::min();
  std::array<epoll_event, 64> events;
  for (const epoll_event& one : epoll_.wait(events, until)) {
    const uint64_t id = one.data.u64;
    if (id == kWake) {
      uint64_t count = 0;
      (void)!::read(wake_.get(), &count, sizeof count);
    } else if (id != kListener) {
      on_event(id);
    }
  }
  for (const std::string& message : std::exchange(to_myself_, {})) on_message_(message);
  if (acceptor_) acceptor_->step();
  for (auto one = streams_.begin(); one != streams_.end();) {
    const auto [id, late] =
        std::pair(one->first, one->second.talk && one->second.talk->prove_by() < net::Clock::now());
    ++one;
    if (late) drop(id);
  }
}

void Connections::wake() noexcept {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void Connections::on_event(uint64_t id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;  // dropped in this turn
  Stream& stream = found->second;
  try {
    if (stream.state != State::Open) return prove(id, stream);
    read(stream);
    flush(id, stream);
  } catch (const CommError&) {  // the peer is gone, or says what no node says
    drop(id);
  }
}

/// Goes on with a stream that this node dials.
void Connections::prove(uint64_t id, Stream& stream) {
  if (stream.state == State::Connecting) {
    int error = 0;
    socklen_t bytes = sizeof error;
    ::getsockopt(stream.connecting.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) throw CommError("nobody listens there");
    epoll_.remove(stream.connecting.get());
    stream.events = 0;
    const net::Identity me{.job = options_.job,
                           .role = role_name(options_.me.role),
                           .rank = options_.nodes.rank_of(options_.me),
                           .size = options_.nodes.count()};
    stream.talk.emplace(net::Socket(std::move(stream.connecting)),
                        net::Handshake(net::Handshake::Side::Client, options_.secret, me),
                        net::Clock::now() + kProveWithin);
    stream.state = State::Proving;
  }
  stream.talk->step();
  if (!stream.talk->is_over())
    return listen_for(id, stream, stream.talk->fd(), stream.talk->interest());
  const net::Handshake& told = stream.talk->handshake();
  if (told.state() != net::Handshake::State::Proven ||
      told.peer().rank != options_.nodes.rank_of(stream.peer))
    throw CommError("somebody else listens there");
  stream.socket = stream.talk->release();
  stream.talk.reset();
  epoll_.remove(stream.socket.fd());
  stream.events = 0;
  stream.state = State::Open;
  flush(id, stream);
}

void Connections::read(Stream& stream) {
  for (std::size_t left = kReadBytes; left > 0;) {
    const std::size_t most = std::min({left, stream.reader.wanted(), buffer_.size()});
    const ssize_t got = ::recv(stream.socket.fd(), buffer_.data(), most, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (got <= 0) throw CommError("the stream has ended");
    stream.reader.feed({buffer_.data(), static_cast<std::size_t>(got)});
    left -= static_cast<std::size_t>(got);
    if (const auto message = stream.reader.take()) on_message_(*message);
  }
}

void Connections::flush(uint64_t id, Stream& stream) {
  while (!stream.out.empty()) {
    const std::string& first = stream.out.front();
    const int more = stream.out.size() > 1 ? MSG_MORE : 0;
    const ssize_t sent = ::send(stream.socket.fd(), first.data() + stream.begin,
                                first.size() - stream.begin, MSG_DONTWAIT | MSG_NOSIGNAL | more);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) break;
    if (sent < 0) break;  // reading it will say so
    stream.begin += static_cast<std::size_t>(sent);
    if (stream.begin < first.size()) continue;
    stream.out.pop_front();
    stream.begin = 0;
  }
  listen_for(id, stream, stream.socket.fd(), stream.out.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

void Connections::listen_for(uint64_t id, Stream& stream, int fd, uint32_t events) {
  if (stream.events == events) return;
  if (stream.events == 0)
    epoll_.add(fd, events, id);
  else
    epoll_.change(fd, events, id);
  stream.events = events;
}

void Connections::drop(uint64_t id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  const NodeId peer = found->second.peer;
  streams_.erase(found);  // closing a descriptor takes it out of the set
  const auto newest = newest_.find(peer);
  if (newest == newest_.end() || newest->second != id) return;
  newest_.erase(newest);
  for (const auto& [other, stream] : streams_)  // an older one may still be good
    if (stream.peer == peer && stream.state == State::Open) newest_[peer] = other;
}

}  // namespace trireme::ps
