#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "trireme/comm/engine.h"
#include "trireme/comm/streams.h"
#include "trireme/net/epoll.h"
#include "trireme/net/socket.h"

namespace trireme::comm {

/// Streams over one socket per pair of ranks. Few sockets are simply tried, each time; which of
/// many are ready is asked of the kernel once a step (epoll, edge-triggered).
class TcpStreams final : public Streams {
 public:
  explicit TcpStreams(std::vector<net::Socket> sockets);  ///< by rank; this rank's own is empty

  int64_t write_some(int peer, const iovec* parts, int num_parts) override;
  int64_t read_some(int peer, void* data, int64_t bytes) override;
  bool readable(int peer) override;
  bool ended(int peer) override;
  void look() override;
  void deliver(std::chrono::nanoseconds most) override;

  /// Readable when something has happened on a socket since the last `take_events`.
  void take_events();
  int fd() const { return epoll_.fd(); }

 private:
  struct Peer {
    net::Socket socket;
    std::vector<std::byte> buffer;  ///< read ahead, so that a small message takes one call
    int64_t begin = 0, end = 0;     ///< what is in it
    bool ready = true;              ///< there may be something to read
    bool full = false;              ///< the last write found no room
    bool ending = false;            ///< an event has told of the end
    bool closed = false;
  };

  int64_t receive(int rank, void* data, int64_t bytes);
  [[noreturn]] void close(int rank);

  std::vector<Peer> peers_;
  net::Epoll epoll_;
  bool few_ = true;
};

/// Sleeps until something happens on the sockets, or on a descriptor that wakes it.
class TcpSleeper final : public Sleeper {
 public:
  explicit TcpSleeper(TcpStreams& streams);

  void prepare(const Hint& hint) override;
  void sleep(std::chrono::nanoseconds most) override;
  void cancel() override {}
  void wake() override;

 private:
  TcpStreams& streams_;
  net::Fd wake_;
};

}  // namespace trireme::comm
