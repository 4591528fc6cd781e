#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/host_page.h"
#include "trireme/net/epoll.h"
#include "trireme/net/socket.h"

namespace trireme::comm {

class World;

/// Returns when that process of this host has ended, or after a moment.
void wait_for_exit(int64_t pid);

/// Watches over one rank's world, on a thread of its own: sees peers of this host die (pidfd) or
/// hang (heartbeat), and carries news between hosts (a connection between their first ranks).
/// Whoever sees a failure first writes it on the host's page.
class Monitor {
 public:
  /// `heartbeat`: silence after which a peer counts as hung.
  explicit Monitor(std::chrono::nanoseconds heartbeat);
  ~Monitor();

  /// The connections to the first ranks of the other hosts, if this is the first of its own.
  void link(int rank, net::Socket socket);

  /// When each rank's process began: whoever has its pid later is not it.
  void expect(std::vector<uint64_t> born) { born_ = std::move(born); }

  /// From now on peers are watched.
  void start(World& world);

  /// Something failed on this host: tell the others.
  void spread() { wake(); }

  /// This rank goes. Tells the other hosts, and ends the thread.
  void leave();

 private:
  struct Peer {
    int rank = 0;
    net::Fd pidfd;
    uint64_t heartbeat = 0;
    std::chrono::nanoseconds silent{0};
    bool gone = false;
  };
  /// What goes over a link: who left, or what failed, or only that the sender lives.
  struct News {
    enum class Kind : uint32_t { Beat, Left, Failed } kind = Kind::Beat;
    int32_t rank = -1;
    CauseKind cause = CauseKind::None;
    char text[500] = {};
  };
  /// Neither end ever waits for the other: what does not fit into the socket stays in `output`,
  /// what has come in part stays in `input`.
  struct Link {
    int rank = 0;
    net::Socket socket;
    std::string output = {};
    std::string input = {};
    std::chrono::nanoseconds silent{0};
    bool is_full = false;  ///< the socket; `output` waits for room
    bool open = true;
  };

  void run(std::stop_token stop);
  void wake();
  void on_peer_exit(Peer& peer);
  void on_event(Link& link, uint32_t events);
  void on_news(Link& link, News news);
  void on_link_lost(Link& link);
  void tick(std::chrono::nanoseconds elapsed);
  void beat(std::chrono::nanoseconds elapsed);
  void tell(const News& news);
  void tell_what_changed();
  void flush(Link& link);
  void flush_all(net::Deadline deadline);

  const std::chrono::nanoseconds heartbeat_;
  net::Fd wake_;
  net::Epoll epoll_;
  std::vector<uint64_t> born_;
  std::mutex mutex_;  ///< of what `start` and `link` set while the thread runs
  World* world_ = nullptr;
  std::vector<Peer> peers_;
  std::vector<Link> links_;
  std::vector<bool> told_left_;
  bool told_failure_ = false;
  std::chrono::nanoseconds since_beat_{0};
  std::jthread thread_;
};

}  // namespace trireme::comm
