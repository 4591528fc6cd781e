#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/net/frame.h"
#include "trireme/net/handshake.h"
#include "trireme/net/socket.h"
#include "trireme/net/store_protocol.h"
#include "trireme/net/store_table.h"

namespace trireme::net {

/// One client of a StoreServer: a state machine over a non-blocking socket.
///
///     Proving --proven--> Serving        a request is read only when the reply before it is gone,
///        \--refused--> Closing           so a client that never reads costs one reply, and the
///                                        value in it is shared with the table
///
/// Every call returns at once and does a bounded amount of work. Throws CommError when the client
/// is gone or talks nonsense; it is to be dropped then.
class StoreSession {
 public:
  enum class Phase { Proving, Serving, Closing };
  /// A wait that is parked until its key exists.
  struct Parked {
    uint64_t number = 0;
    std::string key;
  };

  StoreSession(Socket socket, Handshake handshake, Deadline prove_by);

  /// Reads some of what is there. Returns a request when one is whole.
  std::optional<StoreRequest> read();
  void reply(uint64_t number, StoreStatus status, StoreTable::Value value);
  /// Sends what the socket takes now.
  void flush();

  int fd() const { return socket_.fd(); }
  Phase phase() const { return phase_; }
  Deadline prove_by() const { return prove_by_; }
  bool has_output() const { return sent_ < output_bytes(); }
  /// Refused, and its reply is on the way.
  bool is_over() const { return phase_ == Phase::Closing && !has_output(); }

  std::optional<Parked> parked;
  /// The epoll events that were last asked for.
  uint32_t interest = 0;

 private:
  /// Nothing when there is nothing to read now.
  std::optional<std::string_view> receive(size_t at_most);
  void read_handshake();
  size_t output_bytes() const { return head_.size() + (value_ ? value_->size() : 0); }

  Socket socket_;
  std::optional<Handshake> handshake_;
  Deadline prove_by_;
  Phase phase_ = Phase::Proving;
  FrameReader reader_{kMaxRequestBytes};
  std::string head_;
  StoreTable::Value value_;
  size_t sent_ = 0;
};

}  // namespace trireme::net
