#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/net/epoll.h"
#include "trireme/net/handshaking.h"

namespace trireme::net {

/// Connects to many doors at once and proves itself at each of them, so that meeting n peers takes
/// about as long as meeting one. The other side of `Door`, and driven like it: wait until `fd()` is
/// readable or `due()` has come, then call `step()`.
class Dialer {
 public:
  struct Call {
    Address address;   ///< a number, not a name
    std::string role;  ///< of whoever must answer
    int rank = 0;      ///< and its rank
    Identity me;       ///< as whom to come in
  };
  using Answered = std::function<void(Socket, const Call&)>;

  Dialer(Secret secret, Answered answered);

  void call(Call call);
  int fd() const { return epoll_.fd(); }
  Deadline due() const;

  /// Goes on with every call as far as it can without waiting; hands those that are answered to
  /// `answered`. A call that is refused or cut off is made again a little later. Throws CommError
  /// where the other end is not who it should be, or does not want us.
  void step();

 private:
  struct Line {
    Call call;
    Fd connecting = {};
    std::optional<Handshaking> talk = {};
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
