#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/net/door.h"
#include "trireme/net/epoll.h"

namespace trireme::comm {

/// Hands the descriptors of this rank's segments to the ranks that share them, over a unix socket
/// and from a thread of its own. A rank that asks before the segment exists waits in line, and
/// holds up nobody.
///
///   rank --id--> server     here: 'h' and the descriptor      a problem: 'p' and the sentence
class SegmentServer {
 public:
  SegmentServer(net::Fd listener, net::Secret secret, net::Identity me);
  ~SegmentServer();

  /// Each segment is asked for a known number of times, and then forgotten.
  void put(uint64_t id, net::Fd fd, int takers);
  /// All who ask for it are told that it could not be made, and why.
  void put_problem(uint64_t id, std::string problem);

 private:
  struct Item {
    net::Fd fd;
    int takers = 0;
    std::string problem;
  };
  /// A rank that has proven itself.
  struct Asker {
    net::Socket socket;
    uint64_t id = 0;
    std::size_t id_bytes = 0;  ///< of the id, that have come
  };

  void run(std::stop_token stop);
  void welcome(net::Socket socket);
  void on_event(uint64_t number);
  void answer_all();
  bool answer(Asker& asker);
  void wake();

  net::Fd wake_;
  std::mutex mutex_;
  std::map<uint64_t, Item> items_;  ///< under mutex_

  // The thread's own.
  std::map<uint64_t, Asker> askers_;
  uint64_t next_number_;
  net::Epoll epoll_;
  net::Door door_;
  std::jthread thread_;
};

/// Asks the rank that listens on that unix socket for a segment, and waits until there is one.
net::Fd fetch_segment(const std::string& name, uint64_t id, const net::Secret& secret,
                      const net::Identity& me, net::Deadline deadline);

}  // namespace trireme::comm
