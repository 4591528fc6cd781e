#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trireme/net/epoll.h"
#include "trireme/net/socket_handshake.h"

namespace trireme::net {

/// Accepts connections and authenticates them. Every listener of a job (the store, the streams and
/// control connections of ranks, the segments of shared memory) stands behind one of these.
///
///   listener --accept--> stranger --proves itself--> peer: handed to `welcome`
///                            \--wrong proof, wrong role, 5 s of silence, too many--> dropped
///
/// A state machine over non-blocking sockets, without its own thread: the owner waits until `fd()`
/// is readable or `due()` has come, and calls `step()`. A stranger costs about 1 KiB whatever it
/// sends, and delays nobody. Their number is bounded: the oldest is dropped first, since an honest
/// client proves itself within milliseconds.
class Acceptor {
 public:
  struct Options {
    Secret secret;
    Identity me;  ///< what peers are told, and the job and world that they must belong to
    std::vector<std::string> roles;  ///< that are accepted
    size_t most_strangers = 0;       ///< at once; 0: 256, and one for each rank of `me.size`
    /// Same (unix sockets only): drops processes of other users before it reads anything.
    enum class Users : uint8_t { Any, Same } users = Users::Any;
  };
  using Welcome = std::function<void(Socket, const Identity&)>;

  /// Takes over a listening descriptor, tcp or unix.
  Acceptor(Fd listener, Options options, Welcome welcome);

  /// Readable when `step()` has something to do; may be nested in another epoll set.
  int fd() const { return epoll_.fd(); }

  /// Accepts, reads and answers what it can without waiting. Calls `welcome` for each peer that has
  /// proven itself; if that throws, the connection is dropped.
  void step();

  /// `step()` must be called by then, even if nothing happens.
  Deadline due() const;

  /// What was wrong with the last strangers that were refused, oldest first.
  const std::vector<std::string>& turned_away() const { return turned_away_; }
  int64_t num_turned_away() const { return num_turned_away_; }

 private:
  void accept_some();
  void admit(Fd fd);
  void pause_accepting();
  void on_event(uint64_t id);
  void let_in(uint64_t id);

  Fd listener_;
  Options options_;
  Welcome welcome_;
  const size_t max_strangers_;
  Epoll epoll_;
  /// By growing id: an event for a stranger that was just dropped finds nothing, and the oldest
  /// come first.
  std::map<uint64_t, SocketHandshake> strangers_;
  uint64_t next_id_ = 1;
  Deadline accept_again_ = Deadline::max();
  std::vector<std::string> turned_away_;
  int64_t num_turned_away_ = 0;
};

}  // namespace trireme::net
