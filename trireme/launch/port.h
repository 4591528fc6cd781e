#pragma once

#include "trireme/net/socket.h"

namespace trireme::launch {

/// A free TCP port of 127.0.0.1, reserved until the destructor runs.
///
/// The socket is bound but does not listen: the kernel does not give the port to processes that ask
/// for any port, but rank 0, which asks for it by number with SO_REUSEADDR, gets it.
class ReservedPort {
 public:
  /// Throws CommError if no port is free.
  ReservedPort();

  int number() const { return number_; }

 private:
  net::Fd socket_;
  int number_ = 0;
};

}  // namespace trireme::launch
