#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/net/acceptor.h"
#include "trireme/net/frame.h"
#include "trireme/net/socket_handshake.h"
#include "trireme/ps/ids.h"

namespace trireme::ps {

/// How many nodes a job has, and which rank each has in the handshake: the manager, the servers,
/// the workers.
struct Nodes {
  uint32_t servers = 1, workers = 1;

  int count() const { return static_cast<int>(1 + servers + workers); }
  int rank_of(NodeId node) const;
  /// Throws CommError if there is no such rank.
  NodeId node_of(int rank) const;
};

/// The streams between this node and others, over tcp. Both ends prove that they know the job's
/// secret before a message is read.
///
///   send(to) ──> a stream to `to`?  ── no ──> dial, if `find` knows where it listens ──> proven
///                     │ yes                                 │ no: dropped                  │
///                     v                                     v                              v
///                  frames                       whoever sent it sends it again          frames
///
/// A stream serves both directions, so workers need no listener: servers answer over the stream on
/// which a worker has come. If both ends dial at once there are two streams; each end sends over
/// the newer one and reads both. A stream that breaks takes its messages with it, as an Environment
/// may.
///
/// Without a thread of its own: call `step` in a loop. Only `wake` may be called by other threads.
class Connections {
 public:
  struct Options {
    std::string job;
    net::Secret secret;
    Nodes nodes;
    NodeId me;
    std::optional<net::Address> listen = {};  ///< port 0: any; workers do not listen
    /// Where a node listens, numeric; nothing: not known (yet).
    std::function<std::optional<net::Address>(NodeId)> find;
  };
  using OnMessage = std::function<void(std::string_view bytes)>;

  Connections(Options options, OnMessage on_message);

  /// Where this node listens, with the real port.
  const net::Address& address() const { return address_; }

  void send(NodeId to, std::string message);

  /// Moves what can be moved and passes on what has come; if there is nothing, waits for it until
  /// the deadline.
  void step(net::Deadline until);
  /// Ends a `step` that waits. From any thread.
  void wake() noexcept;

  int64_t sent_bytes() const { return sent_bytes_; }
  int64_t num_turned_away() const { return acceptor_ ? acceptor_->num_turned_away() : 0; }

 private:
  enum class State : uint8_t { Connecting, Proving, Open };
  struct Stream {
    NodeId peer;
    State state = State::Open;
    net::Fd connecting = {};
    std::optional<net::SocketHandshake> talk = {};
    net::Socket socket = {};
    net::FrameReader reader{kMostBytes};
    std::deque<std::string> out = {};  // headers and messages, in turn
    std::size_t begin = 0;             // what of the first was sent
    uint32_t events = 0;               // that epoll waits for
  };
  static constexpr std::size_t kMostBytes = std::size_t{4} << 30;

  void welcome(net::Socket socket, const net::Identity& who);
  Stream* dial(NodeId to);
  void on_event(uint64_t id);
  void prove(uint64_t id, Stream& stream);
  void read(Stream& stream);
  void flush(uint64_t id, Stream& stream);
  void listen_for(uint64_t id, Stream& stream, int fd, uint32_t events);
  void drop(uint64_t id);

  Options options_;
  OnMessage on_message_;
  net::Address address_;
  net::Epoll epoll_;
  net::Fd wake_;
  std::optional<net::Acceptor> acceptor_;
  std::map<uint64_t, Stream> streams_;
  std::map<NodeId, uint64_t> newest_;           // the stream that messages are sent over
  std::map<NodeId, net::Deadline> dial_again_;  // after one that failed
  std::deque<std::string> to_myself_;
  uint64_t next_id_ = 2;  // 0: the listener, 1: wake
  std::string buffer_;
  int64_t sent_bytes_ = 0;
};

}  // namespace trireme::ps
