#include "trireme/comm/tcp/tcp_streams.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace trireme::comm {

namespace {

constexpr int64_t kBufferBytes = 64 << 10;
constexpr int64_t kDirectBytes = 16 << 10;  // larger pieces go straight to where they belong

/// On loopback nothing is ever lost, and pacing (bbr) only halves the rate.
void prefer_reno_on_loopback(const net::Socket& socket) {
  const std::string host = socket.peer().host;
  if (host.rfind("127.", 0) != 0 && host != "::1") return;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

}  // namespace

TcpStreams::TcpStreams(std::vector<net::Socket> sockets) {
  for (net::Socket& socket : sockets) {
    Peer peer;
    if (socket) {
      prefer_reno_on_loopback(socket);
      peer.buffer.resize(kBufferBytes);
    }
    peer.closed = !socket;
    peer.socket = std::move(socket);
    peers_.push_back(std::move(peer));
  }
}

void TcpStreams::close(int rank) {
  peers_[static_cast<std::size_t>(rank)].closed = true;
  throw StreamClosed{rank};
}

int64_t TcpStreams::write_some(int peer, const iovec* parts, int num_parts) {
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  if (to.closed) return 0;
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
  if (got > 0) return got;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
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
  return !from.closed || from.begin < from.end;
}

TcpSleeper::TcpSleeper(const TcpStreams& streams)
    : streams_(streams), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

namespace {

/// Made under the engine's turn, used after it was given up; each sleeping thread has its own.
thread_local std::vector<pollfd> watched;

}  // namespace

void TcpSleeper::prepare(const Hint&) {
  watched.clear();
  watched.push_back({wake_.get(), POLLIN, 0});
  for (const TcpStreams::Peer& peer : streams_.peers()) {
    if (peer.closed) continue;
    watched.push_back(
        {peer.socket.fd(), static_cast<short>(POLLIN | (peer.full ? POLLOUT : 0)), 0});
  }
}

void TcpSleeper::sleep(std::chrono::nanoseconds most) {
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
