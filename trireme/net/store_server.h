#pragma once

#include <memory>
#include <string>

#include "trireme/net/secret.h"
#include "trireme/net/socket.h"

namespace trireme::net {

/// Serves a store over tcp, on its own thread, until it is destroyed. Clients are state machines
/// over non-blocking sockets: a slow, silent, greedy or hostile one delays nobody and costs little
/// memory. A client that does not prove itself within a few seconds is dropped. Every client must
/// belong to this job and world size; a rank may connect more than once.
class StoreServer {
 public:
  /// Binds exactly this address. Throws CommError like Listener.
  StoreServer(const Address& bind, const Secret& secret, const std::string& job, int world_size);
  ~StoreServer();

  /// The bound address, with the real port.
  Address address() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace trireme::net
