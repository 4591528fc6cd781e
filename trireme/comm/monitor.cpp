#include "trireme/comm/monitor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "trireme/comm/bootstrap.h"
#include "trireme/comm/world.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"

namespace trireme::comm {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr auto kTick = milliseconds(100);
constexpr auto kLinkedTick = milliseconds(20);  // the first rank of a host passes on its failures
constexpr auto kLastWords = milliseconds(200);

// The ids of epoll events: 0 is the wake-up, then come the peers, then the links.
constexpr uint64_t kWakeId = 0, kFirstPeer = 1, kFirstLink = uint64_t{1} << 32;

net::Fd open_pidfd(int64_t pid) {
  return net::Fd(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
}

}  // namespace

bool wait_for_exit(int64_t pid) {
  if (pid == ::getpid()) return false;
  const net::Fd process = open_pidfd(pid);
  if (!process) return errno == ESRCH;
  pollfd watched{process.get(), POLLIN, 0};
  return ::poll(&watched, 1, 200) > 0;
}

Monitor::Monitor(nanoseconds heartbeat)
    : heartbeat_(heartbeat), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_.add(wake_.get(), EPOLLIN, kWakeId);
  thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
}

Monitor::~Monitor() {
  leave();
}

void Monitor::link(int rank, net::Socket socket) {
  const std::lock_guard lock(mutex_);
  links_.push_back({rank, std::move(socket)});
}

void Monitor::start(World& world) {
  std::vector<Peer> peers;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == world.rank() || !world.here(rank)) continue;
    Peer peer{rank, open_pidfd(world.member(rank).pid), 0, nanoseconds(0), false};
    // Another process may have its pid by now. Without a pidfd for any other reason (an old kernel,
    // no free descriptors) the heartbeat must suffice.
    peer.gone = process_born(world.member(rank).pid) != born_[static_cast<std::size_t>(rank)];
    peers.push_back(std::move(peer));
  }
  const std::lock_guard lock(mutex_);
  world_ = &world;
  peers_ = std::move(peers);
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].gone)
      on_peer_exit(peers_[i]);
    else if (peers_[i].pidfd)
      epoll_.add(peers_[i].pidfd.get(), EPOLLIN, kFirstPeer + i);
  }
  for (std::size_t i = 0; i < links_.size(); ++i)
    epoll_.add(links_[i].socket.fd(), EPOLLIN, kFirstLink + i);
  told_left_.assign(static_cast<std::size_t>(world.size()), false);
  wake();
}

void Monitor::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void Monitor::leave() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  wake();
  thread_.join();
  // The thread has ended, so this one may use what it owned.
  if (world_ != nullptr) tell_what_changed();
  flush_all(net::Clock::now() + kLastWords);
  world_ = nullptr;
  links_.clear();
}

void Monitor::run(std::stop_token stop) {
  auto last = net::Clock::now();
  std::array<epoll_event, 64> room;
  while (!stop.stop_requested()) {
    const auto most = [&] {
      const std::lock_guard lock(mutex_);
      return links_.empty() ? kTick : kLinkedTick;
    }();
    const auto events = epoll_.wait(room, net::Clock::now() + most);
    const auto now = net::Clock::now();
    const nanoseconds elapsed = std::min<nanoseconds>(now - last, 2 * kTick);
    last = now;
    const std::lock_guard lock(mutex_);
    // Links first: a host that failed may have sent the reason just before.
    for (const epoll_event& event : events) {
      if (event.data.u64 >= kFirstLink) on_event(links_[event.data.u64 - kFirstLink], event.events);
    }
    for (const epoll_event& event : events) {
      if (event.data.u64 == kWakeId) {
        uint64_t count = 0;
        [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
      } else if (event.data.u64 < kFirstLink) {
        on_peer_exit(peers_[event.data.u64 - kFirstPeer]);
      }
    }
    if (world_ != nullptr) tick(elapsed);
  }
}

void Monitor::on_peer_exit(Peer& peer) {
  peer.gone = true;
  peer.pidfd.reset();  // which also removes it from the epoll set
  if (world_ == nullptr) return;
  if (world_->seat(peer.rank).state.load() == static_cast<uint32_t>(SeatState::Left)) return;
  world_->fail({CauseKind::Died, peer.rank,
                world_->describe(peer.rank) + " died" + world_->doing(peer.rank)});
}

void Monitor::tick(nanoseconds elapsed) {
  since_beat_ += elapsed;
  if (since_beat_ >= kTick) beat(std::exchange(since_beat_, nanoseconds(0)));
  tell_what_changed();
}

/// Sends this rank's heartbeat and counts how long the others have been silent. Only time in which
/// this thread ran counts: after Ctrl-Z or a laptop's sleep nobody has hung.
void Monitor::beat(nanoseconds elapsed) {
  world_->seat(world_->rank()).heartbeat.fetch_add(1, std::memory_order_relaxed);
  for (Peer& peer : peers_) {
    const Seat& seat = world_->seat(peer.rank);
    const uint64_t now = seat.heartbeat.load(std::memory_order_relaxed);
    const bool present = seat.state.load() == static_cast<uint32_t>(SeatState::Present);
    const bool moved = std::exchange(peer.heartbeat, now) != now;
    peer.silent = moved || !present || peer.gone ? nanoseconds(0) : peer.silent + elapsed;
    if (peer.silent > heartbeat_ && !world_->failed())
      world_->fail({CauseKind::Hung, peer.rank,
                    fmt::format("{} hangs{}: its process exists, but gave no sign of life for {}",
                                world_->describe(peer.rank), world_->doing(peer.rank),
                                core::format_duration(heartbeat_))});
  }
  for (HostLink& link : links_) {
    link.silent = link.open ? link.silent + elapsed : nanoseconds(0);
    if (link.silent > heartbeat_ && !world_->failed())
      world_->fail({CauseKind::Hung, link.rank,
                    fmt::format("{} hangs, or its host does: no sign of life for {}{}",
                                world_->describe(link.rank), core::format_duration(heartbeat_),
                                world_->doing(link.rank))});
  }
  Message beat;  // with what this rank does
  const std::string doing = world_->seat(world_->rank()).get_note();
  std::memcpy(beat.text, doing.data(), std::min(doing.size(), sizeof(beat.text) - 1));
  tell(beat);
}

void Monitor::tell(const Message& message) {
  for (HostLink& link : links_) {
    // Behind a message that the other end has not read yet, a heartbeat would say nothing new.
    if (!link.open || (message.kind == Message::Kind::Beat && !link.output.empty())) continue;
    link.output.append(reinterpret_cast<const char*>(&message), sizeof message);
    flush(link);
  }
}

/// Sends what the socket takes now; if it is full, asks for an event when there is room.
void Monitor::flush(HostLink& link) {
  while (!link.output.empty()) {
    const ssize_t sent = ::send(link.socket.fd(), link.output.data(), link.output.size(),
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) break;  // full; or lost, which the next read notices
    link.output.erase(0, static_cast<std::size_t>(sent));
  }
  if (link.is_full == !link.output.empty()) return;
  link.is_full = !link.output.empty();
  epoll_.change(link.socket.fd(), link.is_full ? EPOLLIN | EPOLLOUT : EPOLLIN,
                kFirstLink + static_cast<uint64_t>(&link - links_.data()));
}

/// Before this rank leaves: sends the last messages even if the socket is full at the moment.
void Monitor::flush_all(net::Deadline deadline) {
  for (HostLink& link : links_) {
    try {
      if (link.open && !link.output.empty())
        link.socket.send_all(link.output.data(), link.output.size(), deadline);
    } catch (const CommError&) {  // the other end does not listen any more
    }
  }
}

/// Tells the other hosts what has changed on the page of this one, each change once.
void Monitor::tell_what_changed() {
  if (links_.empty()) return;
  for (int rank = 0; rank < world_->size(); ++rank) {
    const bool left = world_->seat(rank).state.load() == static_cast<uint32_t>(SeatState::Left);
    if (!left || !world_->here(rank) || told_left_[static_cast<std::size_t>(rank)]) continue;
    told_left_[static_cast<std::size_t>(rank)] = true;
    tell(Message{Message::Kind::Left, rank, CauseKind::None, {}});
  }
  if (told_failure_ || !world_->failed()) return;
  told_failure_ = true;
  const Cause cause = world_->page().cause();
  Message message{Message::Kind::Failed, cause.rank, cause.kind, {}};
  std::copy_n(cause.text.begin(), std::min(cause.text.size(), sizeof message.text - 1),
              message.text);
  tell(message);
}

void Monitor::on_event(HostLink& link, uint32_t events) {
  if (!link.open) return;
  if ((events & EPOLLOUT) != 0) flush(link);
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
  std::array<char, 8 * sizeof(Message)> bytes;
  const ssize_t got = ::recv(link.socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return on_link_lost(link);
  link.input.append(bytes.data(), static_cast<std::size_t>(got));
  while (link.input.size() >= sizeof(Message)) {
    Message message;
    std::memcpy(&message, link.input.data(), sizeof message);
    link.input.erase(0, sizeof message);
    on_message(link, message);
  }
}

void Monitor::on_message(HostLink& link, Message message) {
  link.silent = nanoseconds(0);
  if (message.rank < -1 || message.rank >= world_->size()) return;
  message.text[sizeof message.text - 1] = '\0';
  if (message.kind == Message::Kind::Beat) {
    world_->seat(link.rank).set_note(message.text);
  } else if (message.kind == Message::Kind::Left && message.rank >= 0) {
    world_->seat(message.rank).state.store(static_cast<uint32_t>(SeatState::Left));
  } else if (message.kind == Message::Kind::Failed) {
    world_->fail({message.cause, message.rank, message.text});
  }
}

void Monitor::on_link_lost(HostLink& link) {
  link.open = false;
  epoll_.remove(link.socket.fd());
  if (world_->seat(link.rank).state.load() == static_cast<uint32_t>(SeatState::Left)) return;
  world_->fail({CauseKind::Died, link.rank,
                fmt::format("{} died, or its host or the network to it failed{}",
                            world_->describe(link.rank), world_->doing(link.rank))});
}

}  // namespace trireme::comm
