#include "trireme/net/dialer.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "trireme/core/error.h"

namespace trireme::net {

namespace {

constexpr auto kAgain = std::chrono::milliseconds(20);

}  // namespace

Dialer::Dialer(Secret secret, Answered answered)
    : secret_(std::move(secret)), answered_(std::move(answered)) {}

void Dialer::call(Call call) {
  lines_.push_back({.call = std::move(call)});
}

Deadline Dialer::due() const {
  Deadline next = Deadline::max();
  for (const Line& line : lines_) {
    if (!line.answered && !line.connecting && !line.talk) next = std::min(next, line.again);
  }
  return next;
}

void Dialer::step() {
  const auto now = Clock::now();
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const Line& line = lines_[i];
    if (!line.answered && !line.connecting && !line.talk && line.again <= now) dial(i);
  }
  std::array<epoll_event, 64> events;
  for (const epoll_event& event : epoll_.wait(events, Deadline::min()))
    on_event(static_cast<std::size_t>(event.data.u64));
}

void Dialer::dial(std::size_t index) {
  Line& line = lines_[index];
  line.connecting = start_connect(line.call.address);
  if (!line.connecting) return hang_up(line);
  epoll_.add(line.connecting.get(), EPOLLOUT, index);
}

/// Tries again later: the peer may not be up yet, or may have been busy.
void Dialer::hang_up(Line& line) {
  line.connecting.reset();
  line.talk.reset();
  line.again = Clock::now() + kAgain;
}

void Dialer::on_event(std::size_t index) {
  Line& line = lines_[index];
  try {
    if (line.connecting) {
      int error = 0;
      socklen_t bytes = sizeof error;
      ::getsockopt(line.connecting.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
      if (error != 0) return hang_up(line);
      line.talk.emplace(Socket(std::move(line.connecting)),
                        Handshake(Handshake::Side::Client, secret_, line.call.me), Deadline::max());
    }
    if (!line.talk) return;
    line.talk->step();
    if (!line.talk->is_over()) return epoll_.change(line.talk->fd(), line.talk->interest(), index);
  } catch (const CommError&) {
    return hang_up(line);
  }
  const Handshake& handshake = line.talk->handshake();
  const std::string address = line.call.address.to_string();
  if (handshake.state() == Handshake::State::Failed)
    throw CommError(fmt::format("handshake: {} {}", address, handshake.error()));
  const Identity& peer = handshake.peer();
  if (peer.role != line.call.role || peer.rank != line.call.rank)
    throw CommError(fmt::format("{}: {} {} answers where {} {} should", address, peer.role,
                                peer.rank, line.call.role, line.call.rank));
  epoll_.remove(line.talk->fd());
  Socket socket = line.talk->release();
  line.talk.reset();
  line.answered = true;
  answered_(std::move(socket), line.call);
}

}  // namespace trireme::net
