#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "trireme/net/socket.h"
#include "trireme/ps/arena.h"
#include "trireme/ps/buffers.h"
#include "trireme/ps/payload.h"

namespace trireme::ps {

/// Messages over one socket, without waiting.
///
///   | body bytes: 8 | kind: 4 | lent parts: 4 | for each lent part: 40 bytes | the other parts |
///
/// Over a unix socket, parts that lie in this process' arena are lent: the message says where they
/// are, and the receiver reads them there. It says when it has done so (Release), and until then
/// the sender keeps them.
///
///   sender    message {segment 2, offset 4096, bytes} ──>  receiver: a Payload of mapped memory
///   exports_  <────────────────────── Release {id}         when its last copy is destroyed
class Stream {
 public:
  struct Local {
    std::shared_ptr<Arena> arena;
    /// Whether what the peer lends may change once it is answered: of a worker's gradients.
    Payload::Lent peer_lends = Payload::Lent::No;
    std::function<void()> wake;  ///< releases wait to be sent; from any thread
  };

  Stream(net::Socket socket, std::shared_ptr<Buffers> buffers, std::optional<Local> local);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int fd() const { return socket_.fd(); }
  /// Queues a message. `flush` sends it.
  void send(const Frame& frame);
  /// Sends what can be sent now. Returns whether nothing is left.
  bool flush();
  /// What waits to be sent, lent parts included.
  size_t queued_bytes() const { return queued_bytes_; }

  /// Reads what has come, but not for ever: whether some of it is left, of which the socket does
  /// not tell. Throws CommError when the stream has ended, or the peer says what no node says.
  enum class Left : bool { Nothing, Some };
  Left read(const std::function<void(Frame)>& on_message);

  /// What the peer may still be reading, if it lives.
  struct Loan {
    net::Fd process;  ///< a pidfd of the peer
    std::map<uint64_t, Payload> payloads;
  };
  Loan take_loan();

 private:
  enum class Kind : uint32_t { Message, Segment, Release };
  enum class Stage : uint8_t { Header, Parts, Inline };
  struct LentPart {
    uint64_t position = 0;  ///< in the message
    uint64_t segment = 0, offset = 0, bytes = 0, id = 0;
  };
  struct Out {
    Payload bytes;
    int fd = -1;            ///< passed with the first byte
    size_t lent_bytes = 0;  ///< that wait with it
  };
  struct PeerSegment {
    std::shared_ptr<std::byte> base;
    uint64_t bytes = 0;
  };
  /// Payloads of the peer that have been destroyed here.
  struct Releases {
    std::mutex mutex;
    std::vector<uint64_t> ids;
    std::function<void()> wake;
    void add(uint64_t id);
  };

  void queue(Kind kind, const std::vector<LentPart>& lent, const std::vector<Payload>& parts,
             int fd = -1);
  void announce(uint32_t segment);
  void queue_releases();
  size_t receive(char* to, size_t bytes);
  bool take_staged(char* to, size_t wanted, size_t& have);
  void begin_body();
  void on_body(const std::function<void(Frame)>& on_message);
  Frame assemble();
  Payload borrowed(const LentPart& part);

  net::Socket socket_;
  std::shared_ptr<Buffers> buffers_;
  std::optional<Local> local_;
  net::Fd process_;

  std::deque<Out> out_;
  size_t begin_ = 0;  ///< what of the first was sent
  size_t queued_bytes_ = 0;
  std::set<uint32_t> announced_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Payload> exports_;

  // What comes in: first into a small buffer, large bodies then straight to their place.
  std::vector<char> staged_;
  size_t staged_begin_ = 0, staged_end_ = 0;
  Stage stage_ = Stage::Header;
  std::vector<char> head_;  ///< header, then lent parts
  size_t have_ = 0;         ///< of the present stage
  Kind kind_ = Kind::Message;
  std::vector<LentPart> lent_;
  std::shared_ptr<void> inline_;
  size_t inline_bytes_ = 0;
  std::deque<net::Fd> passed_;
  std::map<uint64_t, PeerSegment> segments_;
  std::shared_ptr<Releases> releases_ = std::make_shared<Releases>();
};

}  // namespace trireme::ps
