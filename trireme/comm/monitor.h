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

/// Waits until that process of this host has ended, but at most 200 ms; whether it has.
bool wait_for_exit(int64_t pid);

/// Watches the peers of one rank on its own thread: notices when peers of this host die (pidfd) or
/// hang (heartbeat), and passes failures between hosts over connections between their first ranks.
/// The first monitor that notices a failure writes it on the host's page.
class Monitor {
 public:
  /// `heartbeat`: how long a peer may be silent before it counts as hung.
  explicit Monitor(std::chrono::nanoseconds heartbeat);
  ~Monitor();

  /// Adds a connection to the first rank of another host. Only the first rank of a host has them.
  void link(int rank, net::Socket socket);

  /// The start time of each rank's process, to notice a reused pid.
  void expect(std::vector<uint64_t> born) { born_ = std::move(born); }

  /// Starts to watch the peers.
  void start(World& world);

  /// Tells the other hosts soon that something failed on this one.
  void spread() { wake(); }

  /// Tells the other hosts that this rank leaves, and ends the thread.
  void leave();

 private:
  struct Peer {
    int rank = 0;
    net::Fd pidfd;
    uint64_t heartbeat = 0;
    std::chrono::nanoseconds silent{0};
    bool gone = false;
  };
  /// A message between hosts: who left, what failed, or only that the sender is alive.
  struct Message {
    enum class Kind : uint32_t { Beat, Left, Failed } kind = Kind::Beat;
    int32_t rank = -1;
    CauseKind cause = CauseKind::None;
    char text[500] = {};
  };
  /// The connection to the first rank of another host. Neither end waits for the other: `output`
  /// holds what does not fit into the socket, `input` an incomplete message.
  struct HostLink {
    int rank = 0;
    net::Socket socket;
    std::string output = {};
    std::string input = {};
    std::chrono::nanoseconds silent{0};
    bool is_full = false;  ///< the socket is full; `output` waits for room
    bool open = true;
  };

  void run(std::stop_token stop);
  void wake();
  void on_peer_exit(Peer& peer);
  void on_event(HostLink& link, uint32_t events);
  void on_message(HostLink& link, Message message);
  void on_link_lost(HostLink& link);
  void tick(std::chrono::nanoseconds elapsed);
  void beat(std::chrono::nanoseconds elapsed);
  void tell(const Message& message);
  void tell_what_changed();
  void flush(HostLink& link);
  void flush_all(net::Deadline deadline);

  const std::chrono::nanoseconds heartbeat_;
  net::Fd wake_;
  net::Epoll epoll_;
  std::vector<uint64_t> born_;
  std::mutex mutex_;  ///< of what `start` and `link` set while the thread runs
  World* world_ = nullptr;
  std::vector<Peer> peers_;
  std::vector<HostLink> links_;
  std::vector<bool> told_left_;
  bool told_failure_ = false;
  std::chrono::nanoseconds since_beat_{0};
  std::jthread thread_;
};

}  // namespace trireme::comm
