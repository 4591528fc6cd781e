#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trireme/net/epoll.h"
#include "trireme/net/handshaking.h"

namespace trireme::net {

/// The way into a process of a job. Every listener (the store, the streams and the control
/// connections of ranks, the segments of shared memory) lets people in through one of these.
///
///   listener --accept--> stranger --proves itself--> guest: handed to `welcome`
///                            \--wrong proof, wrong role, 5 s of silence, too many--> dropped
///
/// A state machine over non-blocking sockets, without a thread of its own: whoever owns it waits
/// until `fd()` is readable (or `due()` has come) and calls `step()`. A stranger costs about 1 KiB
/// whatever it sends, their number is bounded (the oldest goes first: an honest client proves
/// itself within milliseconds), and none of them delays another.
class Door {
 public:
  struct Options {
    Secret secret;
    Identity me;                     ///< what guests are told, and what they must belong to
    std::vector<std::string> roles;  ///< of those who may come in
    /// Unix sockets only: processes of other users are dropped before they can say anything.
    enum class Users : uint8_t { Any, Same } users = Users::Any;
  };
  using Welcome = std::function<void(Socket, const Identity&)>;

  /// Takes over a listening descriptor, tcp or unix.
  Door(Fd listener, Options options, Welcome welcome);

  /// Becomes readable when `step()` has something to do; may be nested in another epoll set.
  int fd() const { return epoll_.fd(); }

  /// Accepts, reads and answers what can be without waiting. Calls `welcome` for those who proved
  /// themselves; what that throws costs the guest its connection.
  void step();

  /// `step()` must be called by then even if nothing happens.
  Deadline due() const;

  /// What was wrong with the last strangers who could not prove themselves, oldest first.
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
  /// By a number that grows, so that an event of one that has just been dropped finds nobody, and
  /// the oldest come first.
  std::map<uint64_t, Handshaking> strangers_;
  uint64_t next_id_ = 1;
  Deadline accept_again_ = Deadline::max();
  std::vector<std::string> turned_away_;
  int64_t num_turned_away_ = 0;
};

}  // namespace trireme::net
