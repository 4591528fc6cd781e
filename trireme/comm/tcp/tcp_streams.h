#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "trireme/comm/engine.h"
#include "trireme/comm/streams.h"
#include "trireme/net/epoll.h"
#include "trireme/net/socket.h"

namespace trireme::comm {

/// Streams over one socket per pair of ranks. If there are few sockets, every step tries all of
/// them; if there are many, it asks the kernel once which are ready (epoll, edge-triggered).
class TcpStreams final : public Streams {
 public:
  /// Sockets by rank; this rank's own is empty. `rate_mbit` is the most that each of them sends; 0:
  /// no limit.
  explicit TcpStreams(std::vector<net::Socket> sockets, double rate_mbit = 0);

  int64_t write_some(int peer, const iovec* parts, int num_parts) override;
  int64_t read_some(int peer, void* data, int64_t bytes) override;
  bool readable(int peer) override;
  bool ended(int peer) override;
  void look() override;
  void deliver(std::chrono::nanoseconds most) override;

  /// Notes which sockets have become readable or writable.
  void take_events();
  /// Readable when something has happened on a socket since the last `take_events`.
  int fd() const { return epoll_.fd(); }

 private:
  struct Peer {
    net::Socket socket;
    std::vector<std::byte> buffer;  ///< read ahead, so that a small message takes one system call
    int64_t begin = 0, end = 0;     ///< the bytes in the buffer
    bool ready = true;              ///< there may be something to read
    bool full = false;              ///< the last write found no room
    bool ending = false;            ///< an event has announced the end
    bool closed = false;
  };

  int64_t receive(int rank, void* data, int64_t bytes);
  [[noreturn]] void close(int rank);

  std::vector<Peer> peers_;
  net::Epoll epoll_;
  bool few_ = true;
};

/// Sleeps until something happens on the sockets, or until wake() writes to an eventfd.
class TcpSleeper final : public Sleeper {
 public:
  explicit TcpSleeper(TcpStreams& streams);

  void prepare(const WakeCondition& condition) override;
  void sleep(std::chrono::nanoseconds most) override;
  void cancel() override {}
  void wake() override;

 private:
  TcpStreams& streams_;
  net::Fd wake_;
};

}  // namespace trireme::comm
