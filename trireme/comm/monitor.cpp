#include "trireme/comm/monitor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
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
constexpr auto kServeTime = milliseconds(1000);

net::Fd open_pidfd(int64_t pid) {
  return net::Fd(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
}

/// Another user of this machine can connect to an abstract socket; it gets nothing, at once.
bool same_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == ::geteuid();
}

}  // namespace

void wait_for_exit(int64_t pid) {
  if (pid == ::getpid()) return;
  const net::Fd process = open_pidfd(pid);
  pollfd watched{process.get(), POLLIN, 0};
  if (process) ::poll(&watched, 1, 200);
}

Monitor::Monitor(Options options)
    : options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
  if (options_.listener) server_ = std::jthread([this](std::stop_token stop) { serve(stop); });
}

Monitor::~Monitor() {
  leave();
}

void Monitor::link(int rank, net::Socket socket) {
  const std::lock_guard lock(mutex_);
  links_.push_back({rank, std::move(socket), nanoseconds(0), true});
  wake();
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
  for (Peer& peer : peers_) {
    if (peer.gone) on_peer_exit(peer);
  }
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
  if (server_.joinable()) {
    server_.request_stop();
    ::shutdown(options_.listener.get(), SHUT_RDWR);  // wakes it
    server_.join();
  }
  thread_.join();
  // The thread is gone: what it owned is ours now.
  if (world_ != nullptr) tell_what_changed();
  world_ = nullptr;
  links_.clear();
}

void Monitor::run(std::stop_token stop) {
  auto last = net::Clock::now();
  while (!stop.stop_requested()) {
    std::vector<pollfd> watched = {{wake_.get(), POLLIN, 0}};
    nanoseconds most = kTick;
    {
      const std::lock_guard lock(mutex_);
      for (const Peer& peer : peers_)
        watched.push_back({peer.gone ? -1 : peer.pidfd.get(), POLLIN, 0});
      for (const Link& link : links_)
        watched.push_back({link.open ? link.socket.fd() : -1, POLLIN, 0});
      if (!links_.empty()) most = kLinkedTick;
    }
    ::poll(watched.data(), watched.size(), static_cast<int>(most / milliseconds(1)));
    if (watched[0].revents != 0) {
      uint64_t count = 0;
      [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
    }
    const auto now = net::Clock::now();
    const nanoseconds elapsed = std::min<nanoseconds>(now - last, 2 * kTick);
    last = now;
    const std::lock_guard lock(mutex_);
    if (world_ == nullptr) continue;
    // Links first: a host that fell over may have said why just before.
    std::size_t at = 1;
    const std::size_t first_link = at + peers_.size();
    for (std::size_t i = 0; i < links_.size() && first_link + i < watched.size(); ++i) {
      if (watched[first_link + i].revents != 0 && links_[i].open) on_news(links_[i]);
    }
    for (Peer& peer : peers_) {
      if (at >= watched.size()) break;
      if (watched[at++].revents != 0 && !peer.gone) on_peer_exit(peer);
    }
    tick(elapsed);
  }
}

void Monitor::serve(std::stop_token stop) {
  while (!stop.stop_requested()) {
    if (net::wait_ready(options_.listener.get(), POLLIN, net::Clock::now() + kServeTime) !=
        net::Readiness::Ready)
      continue;
    if (stop.stop_requested()) return;
    try {
      const auto deadline = net::Clock::now() + kServeTime;
      net::Socket peer = net::accept_from(options_.listener.get(), deadline);
      if (!same_user(peer.fd())) continue;
      net::prove_as_server(peer, options_.secret, options_.identity, deadline);
      shelf_.serve(peer, deadline);
    } catch (const std::exception&) {  // whoever it was gets no segment, and says so itself
    }
  }
}

void Monitor::on_peer_exit(Peer& peer) {
  peer.gone = true;
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
    if (peer.silent > options_.heartbeat && !world_->failed())
      world_->fail({CauseKind::Hung, peer.rank,
                    fmt::format("{} hangs{}: it is there, but gave no sign of life for {}",
                                world_->describe(peer.rank), world_->doing(peer.rank),
                                core::format_duration(options_.heartbeat))});
  }
  for (Link& link : links_) {
    link.silent = link.open ? link.silent + elapsed : nanoseconds(0);
    if (link.silent > options_.heartbeat && !world_->failed())
      world_->fail(
          {CauseKind::Hung, link.rank,
           fmt::format("{} hangs, or its host does: no sign of life for {}{}",
                       world_->describe(link.rank), core::format_duration(options_.heartbeat),
                       world_->doing(link.rank))});
  }
  News sign;  // of life, with what this rank does
  const std::string doing = world_->seat(world_->rank()).get_note();
  std::memcpy(sign.text, doing.data(), std::min(doing.size(), sizeof(sign.text) - 1));
  tell(sign);
}

void Monitor::tell(const News& news) {
  for (Link& link : links_) {
    if (!link.open) continue;
    try {
      link.socket.send_all(&news, sizeof news, net::Clock::now() + milliseconds(200));
    } catch (const std::exception&) {  // a lost link is noticed where it is read
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

void Monitor::on_news(Link& link) {
  News news;
  try {
    link.socket.recv_all(&news, sizeof news, net::Clock::now() + milliseconds(500));
  } catch (const std::exception&) {
    on_link_lost(link);
    return;
  }
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
  if (world_->seat(link.rank).state.load() == static_cast<uint32_t>(SeatState::Left)) return;
  world_->fail({CauseKind::Died, link.rank,
                fmt::format("{} died, or its host or the network to it did{}",
                            world_->describe(link.rank), world_->doing(link.rank))});
}

}  // namespace trireme::comm
