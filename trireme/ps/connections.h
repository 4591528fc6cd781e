#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trireme/net/acceptor.h"
#include "trireme/net/socket_handshake.h"
#include "trireme/ps/environment.h"
#include "trireme/ps/stream.h"

namespace trireme::ps {

/// One thread of a node: what streams lead to.
struct LaneId {
  NodeId node = {};
  uint32_t lane = 0;
  auto operator<=>(const LaneId&) const = default;
};

/// The streams between this thread of a node and others, over tcp, or over unix sockets between
/// nodes of one host. Both ends prove that they know the job's secret before a message is read.
///
///   send(to) ──> a stream to `to`?  ── no ──> dial, if `find` knows where it listens ──> proven
///                     │ yes                                 │ no: dropped                  │
///                     v                                     v                              v
///                  frames                       whoever sent it sends it again          frames
///
/// A stream serves both directions, so workers need no listener: servers answer over the stream on
/// which a worker has come. If both ends dial at once there are two streams; each end sends over
/// the newer one and reads both. A stream that breaks takes its messages with it, as an Environment
/// may. So does one whose peer reads too slowly.
///
/// Without a thread of its own: call `step` in a loop. Only `wake` may be called by other threads.
class Connections {
 public:
  struct Options {
    std::string job;
    net::Secret secret;
    uint32_t lanes = 1;  ///< of each server
    LaneId me = {};
    std::optional<net::Address> listen = {};  ///< port 0: any; workers do not listen
    /// How long whoever is called may take to prove itself.
    std::chrono::milliseconds prove_within{5000};
    bool local = true;  ///< whether nodes of one host use unix sockets and lend each other memory
    std::shared_ptr<Arena> arena = {};  ///< what is lent; null: nothing
    /// Where a node listens, numeric; nothing: not known (yet).
    std::function<std::optional<Endpoint>(LaneId)> find = {};
  };
  using OnMessage = std::function<void(Frame)>;

  Connections(Options options, OnMessage on_message);
  ~Connections();

  /// Where this thread listens, with the real port.
  const Endpoint& endpoint() const { return endpoint_; }

  void send(LaneId to, const Frame& message);
  /// The stream that messages take now, made or in the making; 0: none, or it takes no more.
  uint64_t way_to(LaneId to) const;
  bool is_open(uint64_t way) const { return streams_.contains(way) || calls_.contains(way); }

  /// Moves what can be moved and passes on what has come; if there is nothing, waits for it until
  /// the deadline. Returns whether anything happened.
  bool step(net::Deadline until);
  /// Readable when `step` has something to do. There may be more to do (`has_waiting`): messages of
  /// this thread to itself, and what a stream has read and not passed on yet.
  int fd() const { return epoll_.fd(); }
  bool has_waiting() const { return !to_myself_.empty() || !unread_.empty(); }
  /// Ends a `step` that waits. From any thread.
  void wake() noexcept;

  /// Called when the last stream of a node has ended.
  std::function<void(NodeId)> on_lost;

  /// Whether somebody has taken a connection to this thread of a node, and may answer.
  bool reaches(LaneId peer) const { return newest_.contains(peer); }
  /// What was wrong with whoever answered the last call that failed, such as "does not speak
  /// trireme"; empty: nobody answered.
  const std::string& failure() const { return failure_; }

  int64_t sent_bytes() const { return sent_bytes_; }
  int64_t num_turned_away() const;

 private:
  /// A stream of ours that is not proven yet.
  struct Call {
    LaneId peer;
    bool local = false;
    net::Fd connecting = {};
    std::optional<net::SocketHandshake> talk = {};
    net::Deadline prove_by = {};
    std::vector<Frame> waiting = {};
    size_t waiting_bytes = 0;
    uint32_t events = 0;  ///< that epoll waits for
  };
  struct Open {
    LaneId peer;
    std::unique_ptr<Stream> stream;
    bool waits_to_send = false;
  };

  net::Identity identity() const;
  net::Acceptor make_acceptor(net::Fd listener, bool local);
  void welcome(net::Socket socket, const net::Identity& who, bool local);
  void open(uint64_t id, LaneId peer, net::Socket socket, bool local);
  bool dial(LaneId to, const Frame& first);
  void prove(uint64_t id, Call& call);
  void on_event(uint64_t id);
  void flush(uint64_t id, Open& open);
  void drop(uint64_t id);
  void forget_loans();

  Options options_;
  OnMessage on_message_;
  std::string host_;
  Endpoint endpoint_;
  net::Epoll epoll_;
  net::Fd wake_;
  std::shared_ptr<Buffers> buffers_ = std::make_shared<Buffers>();
  std::vector<net::Acceptor> acceptors_;
  std::map<uint64_t, Call> calls_;
  std::map<uint64_t, Open> streams_;
  std::map<LaneId, uint64_t> newest_;           ///< the stream, or call, that messages go to
  std::map<LaneId, net::Deadline> dial_again_;  ///< after one that failed
  std::deque<Frame> to_myself_;
  std::set<uint64_t> unread_;        ///< streams that have more to pass on than one turn allows
  std::vector<Stream::Loan> loans_;  ///< of streams that have ended
  uint64_t next_id_;
  std::string failure_;
  int64_t sent_bytes_ = 0;
};

}  // namespace trireme::ps
