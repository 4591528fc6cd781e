#pragma once

#include "trireme/net/socket.h"

namespace trireme::launch {

/// A free TCP port of 127.0.0.1, held as long as this lives.
///
/// The socket is bound but does not listen: the kernel gives the port to nobody who asks for "any",
/// yet rank 0, who asks for it by number with SO_REUSEADDR, gets it.
class ReservedPort {
 public:
  /// Throws CommError if there is none.
  ReservedPort();

  int number() const { return number_; }

 private:
  net::Fd socket_;
  int number_ = 0;
};

}  // namespace trireme::launch
