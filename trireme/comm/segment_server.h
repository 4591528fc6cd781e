#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/net/acceptor.h"
#include "trireme/net/epoll.h"

namespace trireme::comm {

/// Hands the descriptors of this rank's segments to the ranks that share them, over a unix socket
/// and on its own thread. A rank that asks before the segment exists waits, without blocking
/// others.
///
///   rank --id--> server     success: 'h' and the descriptor     failure: 'p' and the reason
class SegmentServer {
 public:
  SegmentServer(net::Fd listener, net::Secret secret, net::Identity me);
  ~SegmentServer();

  /// Offers a segment until `takers` ranks have fetched it.
  void put(uint64_t id, net::Fd fd, int takers);
  /// Tells every rank that asks for the segment why it could not be made.
  void put_problem(uint64_t id, std::string problem);

 private:
  struct OfferedSegment {
    net::Fd fd;
    int takers = 0;
    std::string problem;
  };
  /// A rank that has proven itself.
  struct Client {
    net::Socket socket;
    uint64_t id = 0;
    std::size_t id_bytes = 0;  ///< bytes of the id that have come
  };

  void run(std::stop_token stop);
  void welcome(net::Socket socket);
  void on_event(uint64_t number);
  void answer_all();
  bool answer(Client& client);
  void wake();

  net::Fd wake_;
  std::mutex mutex_;
  std::map<uint64_t, OfferedSegment> offered_;  ///< under mutex_

  // Used by the thread only.
  std::map<uint64_t, Client> clients_;
  uint64_t next_number_;
  net::Epoll epoll_;
  net::Acceptor acceptor_;
  std::jthread thread_;
};

/// Fetches a segment from the rank that listens on that unix socket; waits until it exists.
net::Fd fetch_segment(const std::string& name, uint64_t id, const net::Secret& secret,
                      const net::Identity& me, net::Deadline deadline);

}  // namespace trireme::comm
