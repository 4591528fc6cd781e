#pragma once

#include <cstdint>
#include <string>

#include "trireme/net/handshake.h"
#include "trireme/net/socket.h"

namespace trireme::net {

/// A handshake over a non-blocking socket, for loops that drive many at once.
class SocketHandshake {
 public:
  SocketHandshake(Socket socket, Handshake handshake, Deadline prove_by);

  /// Sends and reads what it can now. Throws CommError when the peer is gone.
  void step();

  /// Whether it has ended, well or not, and all output has been sent.
  bool is_over() const {
    return output_.empty() && handshake_.state() != Handshake::State::Talking;
  }

  /// The epoll events that it waits for.
  uint32_t interest() const;

  int fd() const { return socket_.fd(); }
  Deadline prove_by() const { return prove_by_; }
  const Handshake& handshake() const { return handshake_; }
  Socket release() { return std::move(socket_); }
  std::string peer_address() const { return socket_.peer().to_string(); }

 private:
  bool flush();
  bool read();

  Socket socket_;
  Handshake handshake_;
  Deadline prove_by_;
  std::string output_;
};

}  // namespace trireme::net
