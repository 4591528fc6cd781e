#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/net/epoll.h"
#include "trireme/net/socket_handshake.h"

namespace trireme::net {

/// Connects to many peers at once and authenticates at each of them, so that n connections take
/// about as long as one. The counterpart of `Acceptor`, and driven like it: wait until `fd()` is
/// readable or `due()` has come, then call `step()`.
class Dialer {
 public:
  struct Call {
    Address address;   ///< numeric, not a name
    std::string role;  ///< of the peer that must answer
    int rank = 0;      ///< and its rank
    Identity me;       ///< what to tell the peer
  };
  using Answered = std::function<void(Socket, const Call&)>;

  Dialer(Secret secret, Answered answered);

  void call(Call call);
  int fd() const { return epoll_.fd(); }
  Deadline due() const;

  /// Advances every call as far as it can without waiting, and passes each finished one to
  /// `answered`. A call that is refused by the network or cut off is tried again a little later.
  /// Throws CommError if the peer is not the expected one, or does not accept us.
  void step();

 private:
  struct Line {
    Call call;
    Fd connecting = {};
    std::optional<SocketHandshake> talk = {};
    Deadline again = Deadline::min();
    bool answered = false;
  };

  void dial(std::size_t index);
  void on_event(std::size_t index);
  void hang_up(Line& line);

  Secret secret_;
  Answered answered_;
  Epoll epoll_;
  std::vector<Line> lines_;
};

}  // namespace trireme::net
