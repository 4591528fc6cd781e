#include "trireme/comm/tcp/tcp_streams.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "trireme/core/error.h"

namespace trireme::comm {

namespace {

constexpr int64_t kBufferBytes = 64 << 10;
constexpr std::size_t kFew = 8;
constexpr int64_t kDirectBytes = 16 << 10;  // larger data skips the buffer

/// On loopback no packet is lost, and pacing (bbr) only halves the rate.
void prefer_reno_on_loopback(const net::Socket& socket) {
  const std::string host = socket.peer().host;
  if (host.rfind("127.", 0) != 0 && host != "::1") return;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

/// The kernel paces what the socket sends: it holds packets back, the socket's memory fills up, and
/// a write finds no room, as on a slow network. The first ten packets of a connection are not held
/// back.
void limit_rate(const net::Socket& socket, double mbit) {
  if (mbit <= 0) return;
  const auto bytes_per_s = static_cast<uint64_t>(std::clamp(mbit * 1e6 / 8, 1.0, 1e18));
  if (::setsockopt(socket.fd(), SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_s, sizeof bytes_per_s) !=
      0)
    throw CommError(
        fmt::format("tcp: cannot limit a connection to {} Mbit/s: {}", mbit, std::strerror(errno)));
}

}  // namespace

TcpStreams::TcpStreams(std::vector<net::Socket> sockets, double rate_mbit)
    : few_(sockets.size() <= kFew) {
  for (net::Socket& socket : sockets) {
    Peer peer;
    if (socket) {
      prefer_reno_on_loopback(socket);
      limit_rate(socket, rate_mbit);
      peer.buffer.resize(kBufferBytes);
      epoll_.add(socket.fd(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, peers_.size());
    }
    peer.closed = !socket;
    peer.socket = std::move(socket);
    peers_.push_back(std::move(peer));
  }
}

void TcpStreams::look() {
  if (!few_) take_events();
}

/// Each event says that something has changed, and comes once (edge-triggered).
void TcpStreams::take_events() {
  std::array<epoll_event, 64> room;
  for (;;) {
    const auto events = epoll_.wait(room, net::Deadline::min());
    for (const epoll_event& event : events) {
      Peer& peer = peers_[event.data.u64];
      if ((event.events & EPOLLOUT) != 0) peer.full = false;
      if ((event.events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) peer.ready = true;
      if ((event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) peer.ending = true;
    }
    if (events.size() < room.size()) return;
  }
}

void TcpStreams::close(int rank) {
  peers_[static_cast<std::size_t>(rank)].closed = true;
  throw StreamClosed{rank};
}

int64_t TcpStreams::write_some(int peer, const iovec* parts, int num_parts) {
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  if (to.closed || (to.full && !few_)) return 0;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<std::size_t>(num_parts);
  const ssize_t wrote = ::sendmsg(to.socket.fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  to.full = wrote < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  if (wrote >= 0) return wrote;
  if (to.full || errno == EINTR) return 0;
  close(peer);
}

int64_t TcpStreams::receive(int rank, void* data, int64_t bytes) {
  Peer& from = peers_[static_cast<std::size_t>(rank)];
  const ssize_t got = ::recv(from.socket.fd(), data, static_cast<std::size_t>(bytes), MSG_DONTWAIT);
  // Less than there was room for: the socket is empty, and new data will raise another event. The
  // end of the stream is the exception: its event may have been the last.
  if (got < bytes) from.ready = got == 0 || from.ending;
  if (got > 0) return got;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  if (got < 0 && errno == EINTR) {
    from.ready = true;
    return 0;
  }
  close(rank);
}

int64_t TcpStreams::read_some(int peer, void* data, int64_t bytes) {
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  if (from.begin == from.end) {
    if (from.closed) return 0;
    if (bytes >= kDirectBytes) return receive(peer, data, bytes);
    from.begin = 0;
    from.end = 0;
    from.end = receive(peer, from.buffer.data(), kBufferBytes);
  }
  const int64_t now = std::min(bytes, from.end - from.begin);
  std::memcpy(data, from.buffer.data() + from.begin, static_cast<std::size_t>(now));
  from.begin += now;
  return now;
}

bool TcpStreams::readable(int peer) {
  const Peer& from = peers_[static_cast<std::size_t>(peer)];
  return (!from.closed && (few_ || from.ready)) || from.begin < from.end;
}

bool TcpStreams::ended(int peer) {
  const Peer& from = peers_[static_cast<std::size_t>(peer)];
  return from.closed && from.begin == from.end;
}

/// If a socket is closed while its peer still sends, the kernel answers with a reset and drops what
/// it has not delivered yet. So the socket stays open, and reads, until the peer's kernel has
/// everything.
void TcpStreams::deliver(std::chrono::nanoseconds most) {
  for (Peer& peer : peers_) {
    if (!peer.closed) ::shutdown(peer.socket.fd(), SHUT_WR);
  }
  std::vector<std::byte> waste(kBufferBytes);
  const auto delivered = [&](Peer& peer) {
    if (peer.closed) return true;
    int unsent = 0;
    if (::ioctl(peer.socket.fd(), SIOCOUTQ, &unsent) != 0 || unsent == 0) return true;
    ssize_t got = 0;
    while ((got = ::recv(peer.socket.fd(), waste.data(), waste.size(), MSG_DONTWAIT)) > 0) {
    }
    return got == 0 || (errno != EAGAIN && errno != EINTR);
  };
  const auto until = net::Clock::now() + most;
  while (!std::all_of(peers_.begin(), peers_.end(), delivered) && net::Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TcpSleeper::TcpSleeper(TcpStreams& streams)
    : streams_(streams), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

/// The engine's next look sees the events so far; any later event ends the sleep.
void TcpSleeper::prepare(const WakeCondition&) {
  streams_.take_events();
}

void TcpSleeper::sleep(std::chrono::nanoseconds most) {
  std::array<pollfd, 2> watched = {{{wake_.get(), POLLIN, 0}, {streams_.fd(), POLLIN, 0}}};
  ::poll(watched.data(), watched.size(),
         static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(most).count()));
  if (watched.front().revents == 0) return;
  uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
}

void TcpSleeper::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

}  // namespace trireme::comm
