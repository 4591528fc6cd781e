#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "trireme/comm/engine.h"
#include "trireme/comm/streams.h"
#include "trireme/net/socket.h"

namespace trireme::comm {

/// Streams over one socket per pair of ranks.
class TcpStreams final : public Streams {
 public:
  explicit TcpStreams(std::vector<net::Socket> sockets);  ///< by rank; this rank's own is empty

  int64_t write_some(int peer, const iovec* parts, int num_parts) override;
  int64_t read_some(int peer, void* data, int64_t bytes) override;
  bool readable(int peer) override;
  bool ended(int peer) override { return !readable(peer); }

  struct Peer {
    net::Socket socket;
    std::vector<std::byte> buffer;  ///< read ahead, so that a small message takes one call
    int64_t begin = 0, end = 0;     ///< what is in it
    bool full = false;              ///< the last write found no room
    bool closed = false;
  };
  const std::vector<Peer>& peers() const { return peers_; }

 private:
  int64_t receive(int rank, void* data, int64_t bytes);
  [[noreturn]] void close(int rank);

  std::vector<Peer> peers_;
};

/// Sleeps in poll() on the sockets, and on a descriptor that wakes it.
class TcpSleeper final : public Sleeper {
 public:
  explicit TcpSleeper(const TcpStreams& streams);

  void prepare(const Hint& hint) override;
  void sleep(std::chrono::nanoseconds most) override;
  void cancel() override {}
  void wake() override;

 private:
  const TcpStreams& streams_;
  net::Fd wake_;
};

}  // namespace trireme::comm
