#include "trireme/net/socket_handshake.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "trireme/core/error.h"

namespace trireme::net {

SocketHandshake::SocketHandshake(Socket socket, Handshake handshake, Deadline prove_by)
    : socket_(std::move(socket)),
      handshake_(std::move(handshake)),
      prove_by_(prove_by),
      output_(handshake_.take_output()) {}

uint32_t SocketHandshake::interest() const {
  return output_.empty() ? EPOLLIN : EPOLLOUT;
}

void SocketHandshake::step() {
  while (flush() && handshake_.state() == Handshake::State::Talking && read()) {
  }
}

/// Sends what the socket takes now. Returns true if nothing is left to send.
bool SocketHandshake::flush() {
  while (!output_.empty()) {
    const ssize_t sent =
        ::send(socket_.fd(), output_.data(), output_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0)
      output_.erase(0, static_cast<size_t>(sent));
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      return false;
    else if (errno != EINTR)
      throw CommError(core::errno_text(errno));
  }
  return true;
}

/// Feeds the handshake with what has arrived. Returns false if nothing has.
bool SocketHandshake::read() {
  std::array<char, 1024> bytes;
  const size_t room = std::min(bytes.size(), handshake_.wanted());
  const ssize_t got = ::recv(socket_.fd(), bytes.data(), room, MSG_DONTWAIT);
  if (got == 0) throw CommError("closed the connection");
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
    throw CommError(core::errno_text(errno));
  }
  handshake_.feed({bytes.data(), static_cast<size_t>(got)});
  output_ += handshake_.take_output();
  return true;
}

}  // namespace trireme::net
