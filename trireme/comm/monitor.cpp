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
constexpr auto kLinkedTick = milliseconds(20);  // the first rank of a host carries its news
constexpr auto kLastWords = milliseconds(200);

// What the events of the epoll set carry: 0 is the wake-up, then peers, then links.
constexpr uint64_t kWakeId = 0, kFirstPeer = 1, kFirstLink = uint64_t{1} << 32;

net::Fd open_pidfd(int64_t pid) {
  return net::Fd(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
}

}  // namespace

void wait_for_exit(int64_t pid) {
  if (pid == ::getpid()) return;
  const net::Fd process = open_pidfd(pid);
  pollfd watched{process.get(), POLLIN, 0};
  if (process) ::poll(&watched, 1, 200);
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
    // Somebody else may have its number by now. Where there is no pidfd for another reason (an old
    // kernel, no descriptors left) the heartbeat must do.
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
  // The thread is gone: what it owned is ours now.
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
    // Links first: a host that fell over may have said why just before.
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
  peer.pidfd.reset();  // and so leaves the epoll set
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

/// Shows that this rank lives, and counts how long the others have not. Only time in which this
/// thread itself ran counts: after Ctrl-Z, or a laptop's sleep, nobody has hung.
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
                    fmt::format("{} hangs{}: it is there, but gave no sign of life for {}",
                                world_->describe(peer.rank), world_->doing(peer.rank),
                                core::format_duration(heartbeat_))});
  }
  for (Link& link : links_) {
    link.silent = link.open ? link.silent + elapsed : nanoseconds(0);
    if (link.silent > heartbeat_ && !world_->failed())
      world_->fail({CauseKind::Hung, link.rank,
                    fmt::format("{} hangs, or its host does: no sign of life for {}{}",
                                world_->describe(link.rank), core::format_duration(heartbeat_),
                                world_->doing(link.rank))});
  }
  News sign;  // of life, with what this rank does
  const std::string doing = world_->seat(world_->rank()).get_note();
  std::memcpy(sign.text, doing.data(), std::min(doing.size(), sizeof(sign.text) - 1));
  tell(sign);
}

void Monitor::tell(const News& news) {
  for (Link& link : links_) {
    // A sign of life behind news that the other end has not taken yet would say nothing more.
    if (!link.open || (news.kind == News::Kind::Beat && !link.output.empty())) continue;
    link.output.append(reinterpret_cast<const char*>(&news), sizeof news);
    flush(link);
  }
}

/// Sends what the socket takes now, and asks to be told when it takes more.
void Monitor::flush(Link& link) {
  while (!link.output.empty()) {
    const ssize_t sent = ::send(link.socket.fd(), link.output.data(), link.output.size(),
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) break;  // full; or lost, which is noticed where it is read
    link.output.erase(0, static_cast<std::size_t>(sent));
  }
  if (link.is_full == !link.output.empty()) return;
  link.is_full = !link.output.empty();
  epoll_.change(link.socket.fd(), link.is_full ? EPOLLIN | EPOLLOUT : EPOLLIN,
                kFirstLink + static_cast<uint64_t>(&link - links_.data()));
}

/// Before this rank goes: the last news must not be lost in a socket that is full at the moment.
void Monitor::flush_all(net::Deadline deadline) {
  for (Link& link : links_) {
    try {
      if (link.open && !link.output.empty())
        link.socket.send_all(link.output.data(), link.output.size(), deadline);
    } catch (const CommError&) {  // the other end does not listen any more
    }
  }
}

/// Carries what the page of this host says to the other hosts, each thing once.
void Monitor::tell_what_changed() {
  if (links_.empty()) return;
  for (int rank = 0; rank < world_->size(); ++rank) {
    const bool left = world_->seat(rank).state.load() == static_cast<uint32_t>(SeatState::Left);
    if (!left || !world_->here(rank) || told_left_[static_cast<std::size_t>(rank)]) continue;
    told_left_[static_cast<std::size_t>(rank)] = true;
    tell(News{News::Kind::Left, rank, CauseKind::None, {}});
  }
  if (told_failure_ || !world_->failed()) return;
  told_failure_ = true;
  const Cause cause = world_->page().cause();
  News news{News::Kind::Failed, cause.rank, cause.kind, {}};
  std::copy_n(cause.text.begin(), std::min(cause.text.size(), sizeof news.text - 1), news.text);
  tell(news);
}

void Monitor::on_event(Link& link, uint32_t events) {
  if (!link.open) return;
  if ((events & EPOLLOUT) != 0) flush(link);
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
  std::array<char, 8 * sizeof(News)> bytes;
  const ssize_t got = ::recv(link.socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return on_link_lost(link);
  link.input.append(bytes.data(), static_cast<std::size_t>(got));
  while (link.input.size() >= sizeof(News)) {
    News news;
    std::memcpy(&news, link.input.data(), sizeof news);
    link.input.erase(0, sizeof news);
    on_news(link, news);
  }
}

void Monitor::on_news(Link& link, News news) {
  link.silent = nanoseconds(0);
  if (news.rank < -1 || news.rank >= world_->size()) return;
  news.text[sizeof news.text - 1] = '\0';
  if (news.kind == News::Kind::Beat) {
    world_->seat(link.rank).set_note(news.text);
  } else if (news.kind == News::Kind::Left && news.rank >= 0) {
    world_->seat(news.rank).state.store(static_cast<uint32_t>(SeatState::Left));
  } else if (news.kind == News::Kind::Failed) {
    world_->fail({news.cause, news.rank, news.text});
  }
}

void Monitor::on_link_lost(Link& link) {
  link.open = false;
  epoll_.remove(link.socket.fd());
  if (world_->seat(link.rank).state.load() == static_cast<uint32_t>(SeatState::Left)) return;
  world_->fail({CauseKind::Died, link.rank,
                fmt::format("{} died, or its host or the network to it did{}",
                            world_->describe(link.rank), world_->doing(link.rank))});
}

}  // namespace trireme::comm
