#include "trireme/net/acceptor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "trireme/core/error.h"

namespace trireme::net {

namespace {

constexpr auto kProveWithin = std::chrono::seconds(5);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
/// The number of strangers that may wait, beyond one for each rank.
constexpr size_t kSpareStrangers = 256;
/// Few at a time, so that earlier strangers get on with their proofs in between.
constexpr int kAcceptsPerTurn = 16;
constexpr size_t kMostTurnedAway = 8;
constexpr uint64_t kListenerId = 0;

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == ::geteuid();
}

Admit only(const std::vector<std::string>& roles) {
  return [roles](const Identity& who) -> std::string {
    if (std::find(roles.begin(), roles.end(), who.role) != roles.end()) return {};
    return fmt::format("this listener does not accept the role '{}'", who.role);
  };
}

}  // namespace

Acceptor::Acceptor(Fd listener, Options options, Welcome welcome)
    : listener_(std::move(listener)),
      options_(std::move(options)),
      welcome_(std::move(welcome)),
      max_strangers_(options_.most_strangers > 0
                         ? options_.most_strangers
                         : kSpareStrangers + static_cast<size_t>(options_.me.size)) {
  const Handshake refuses_a_bad_job_id(Handshake::Side::Server, options_.secret, options_.me);
  epoll_.add(listener_.get(), EPOLLIN, kListenerId);
}

Deadline Acceptor::due() const {
  if (strangers_.empty()) return accept_again_;
  return std::min(accept_again_, strangers_.begin()->second.prove_by());
}

void Acceptor::step() {
  std::array<epoll_event, 64> events;
  for (const epoll_event& event : epoll_.wait(events, Deadline::min())) {
    if (event.data.u64 == kListenerId)
      accept_some();
    else
      on_event(event.data.u64);
  }
  // Strangers are in the order in which they connected, so the overdue ones are first.
  const auto now = Clock::now();
  while (!strangers_.empty() && strangers_.begin()->second.prove_by() <= now)
    strangers_.erase(strangers_.begin());
  if (accept_again_ > now) return;
  epoll_.change(listener_.get(), EPOLLIN, kListenerId);
  accept_again_ = Deadline::max();
}

void Acceptor::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      admit(std::move(fd));
      continue;
    }
    const bool is_out_of_room =
        errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (!is_out_of_room) return;
    if (strangers_.empty()) return pause_accepting();
    strangers_.erase(strangers_.begin());
  }
}

void Acceptor::admit(Fd fd) {
  if (options_.users == Options::Users::Same && !is_same_user(fd.get())) return;
  if (strangers_.size() >= max_strangers_) strangers_.erase(strangers_.begin());
  const uint64_t id = next_id_++;
  try {
    Handshake handshake(Handshake::Side::Server, options_.secret, options_.me,
                        only(options_.roles));
    const auto [place, is_new] = strangers_.try_emplace(
        id, Socket(std::move(fd)), std::move(handshake), Clock::now() + kProveWithin);
    epoll_.add(place->second.fd(), EPOLLIN, id);
  } catch (const std::exception&) {
    strangers_.erase(id);
  }
}

/// Without a free descriptor the listener stays readable; trying again at once would only keep a
/// core busy.
void Acceptor::pause_accepting() {
  epoll_.change(listener_.get(), 0, kListenerId);
  accept_again_ = Clock::now() + kAcceptPause;
}

void Acceptor::on_event(uint64_t id) {
  const auto found = strangers_.find(id);
  if (found == strangers_.end()) return;
  SocketHandshake& stranger = found->second;
  try {
    const uint32_t before = stranger.interest();
    stranger.step();
    if (stranger.is_over()) return let_in(id);
    if (stranger.interest() != before) epoll_.change(stranger.fd(), stranger.interest(), id);
  } catch (const std::exception&) {
    strangers_.erase(id);  // it is gone, sent nonsense, or there is no memory for it
  }
}

void Acceptor::let_in(uint64_t id) {
  auto stranger = strangers_.extract(id);
  SocketHandshake& over = stranger.mapped();
  epoll_.remove(over.fd());
  if (over.handshake().state() == Handshake::State::Proven)
    return welcome_(over.release(), over.handshake().peer());
  if (turned_away_.size() == kMostTurnedAway) turned_away_.erase(turned_away_.begin());
  turned_away_.push_back(fmt::format("{} {}", over.peer_address(), over.handshake().error()));
  ++num_turned_away_;
}

}  // namespace trireme::net
