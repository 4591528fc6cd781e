#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/host_page.h"
#include "trireme/net/handshake.h"
#include "trireme/net/socket.h"

namespace trireme::comm {

class World;

/// File descriptors of segments that peers may fetch: each is asked for a known number of times.
class Shelf {
 public:
  void put(uint64_t id, net::Fd fd, int takers);
  void put_problem(uint64_t id, std::string problem);

  /// Answers one peer that has proven itself: the fd, a problem, or "not yet".
  void serve(net::Socket& peer, net::Deadline deadline);

 private:
  struct Item {
    net::Fd fd;
    int takers = 0;
    std::string problem;
  };
  std::mutex mutex_;
  std::map<uint64_t, Item> items_;
};

/// Asks the rank that listens on that unix socket for a segment, again and again until it has it.
net::Fd fetch_segment(const std::string& name, uint64_t id, const net::Secret& secret,
                      const net::Identity& me, net::Deadline deadline);

/// Returns when that process of this host has ended, or after a moment.
void wait_for_exit(int64_t pid);

/// Watches over one rank's world, on a thread of its own: sees peers of this host die (pidfd) or
/// hang (heartbeat), and carries news between hosts (a connection between their first ranks).
/// Whoever sees a failure first writes it on the host's page. A second thread hands out segments.
class Monitor {
 public:
  struct Options {
    net::Secret secret;
    net::Identity identity;
    net::Fd listener = {};                 ///< unix socket for segments; none: nothing to hand out
    std::chrono::nanoseconds heartbeat{};  ///< silence after which a peer counts as hung
  };
  explicit Monitor(Options options);
  ~Monitor();

  Shelf& shelf() { return shelf_; }

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
  struct Link {
    int rank = 0;
    net::Socket socket;
    std::chrono::nanoseconds silent{0};
    bool open = true;
  };
  /// What goes over a link: who left, or what failed, or only that the sender lives.
  struct News {
    enum class Kind : uint32_t { Beat, Left, Failed } kind = Kind::Beat;
    int32_t rank = -1;
    CauseKind cause = CauseKind::None;
    char text[500] = {};
  };

  void run(std::stop_token stop);
  void serve(std::stop_token stop);
  void wake();
  void on_peer_exit(Peer& peer);
  void on_news(Link& link);
  void on_link_lost(Link& link);
  void tick(std::chrono::nanoseconds elapsed);
  void beat(std::chrono::nanoseconds elapsed);
  void tell(const News& news);
  void tell_what_changed();

  Options options_;
  Shelf shelf_;
  net::Fd wake_;
  std::vector<uint64_t> born_;
  std::mutex mutex_;  ///< of what `start` and `link` set while the thread runs
  World* world_ = nullptr;
  std::vector<Peer> peers_;
  std::vector<Link> links_;
  std::vector<bool> told_left_;
  bool told_failure_ = false;
  std::chrono::nanoseconds since_beat_{0};
  std::jthread thread_;
  std::jthread server_;  ///< of segments: a peer that says nothing must not hold up the watch
};

}  // namespace trireme::comm
