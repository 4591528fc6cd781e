#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "trireme/net/secret.h"
#include "trireme/net/socket.h"

namespace trireme::net {

/// Who a process claims to be. The role is a short word such as "rank" or "store".
struct Identity {
  std::string job = {};
  std::string role = {};
  int rank = 0;
  int size = 1;
};

/// May refuse a peer that has proven itself: returns the reason, which the peer gets to see, or "".
using Admit = std::function<std::string(const Identity&)>;

/// Both ends of a connection prove that they know the secret before they exchange anything else.
/// This is the handshake without a socket: bytes go in, bytes come out. `prove` and `Acceptor`
/// drive it. The server refuses another job id, another world size and a rank outside of the world.
///
///     client                                         server
///       | TRIREME, version, nonce C (40 bytes) -------> |
///       | <------- TRIREME, version, nonce S (40 bytes) |
///       | who, HMAC("client", C, S, who) -------------> | checks
///       | <----- verdict, who, HMAC("server", C, S, ..) |   (a wrong proof: the bare verdict)
///     checks                                            |
///
/// It never takes more than about 1 KiB of memory, whatever the peer sends.
class Handshake {
 public:
  enum class Side { Client, Server };
  enum class State { Talking, Proven, Failed };

  Handshake(Side side, Secret secret, Identity me, Admit admit = {});

  /// What to send to the peer now, even after a failure; empty once taken.
  std::string take_output();
  /// How many more bytes it needs to go on; 0 when it is over. A driver that reads no more than
  /// this leaves what follows the handshake in the socket.
  size_t wanted() const;
  /// Takes bytes from the peer, at most wanted().
  void feed(std::string_view bytes);

  State state() const { return state_; }
  /// The other end, once it has proven itself.
  const Identity& peer() const { return peer_; }
  /// After a failure: what is wrong with the peer. The caller puts its name before it.
  const std::string& error() const { return error_; }

 private:
  enum class NextInput { Hello, Header, Body };

  void on_hello();
  void on_header();
  void on_proof();
  void on_verdict();
  void check_magic();
  void fail(std::string sentence);
  void reply(char verdict, const std::string& sentence);
  std::string refusal() const;
  Digest proof_of(Side prover, std::string_view message) const;

  Side side_;
  Secret secret_;
  Identity me_;
  Admit admit_;
  State state_ = State::Talking;
  NextInput next_input_ = NextInput::Hello;
  std::string my_nonce_;
  std::string peer_nonce_;
  std::string input_;
  std::string output_;
  size_t needed_ = 0;
  char kind_ = 0;
  Identity peer_;
  std::string error_;
};

/// Drives a handshake to its end, and returns who the other end is. Throws CommError (TimeoutError)
/// that names the peer and the likely cause; the connection is then unusable.
Identity prove(Socket& socket, Handshake handshake, Deadline deadline);

/// A connection on which both ends have proven themselves.
struct ProvenConnection {
  Socket socket;
  Identity peer;
};

/// Connects (a host that begins with @ is a unix socket), proves itself, and checks the role of the
/// other end. Tries again if the other end hangs up during the handshake, as it does if this
/// process was stopped for too long or if too many strangers connect.
ProvenConnection connect_and_prove(const Address& address, const std::string& role,
                                   const Secret& secret, const Identity& me, Deadline deadline);

}  // namespace trireme::net
