#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/net/frame.h"
#include "trireme/net/socket.h"
#include "trireme/net/store_protocol.h"
#include "trireme/net/store_table.h"

namespace trireme::net {

/// One authenticated client of a StoreServer: requests and replies over a non-blocking socket. A
/// request is read only when the previous reply has been sent, so a client that never reads costs
/// one reply, whose value is shared with the table.
///
/// Every call returns at once and does a bounded amount of work. Throws CommError if the client is
/// gone or sends nonsense; the server then drops it.
class StoreSession {
 public:
  /// A wait whose keys do not all exist yet.
  struct ParkedWait {
    uint64_t number = 0;
    std::string list;               ///< the keys as the client sent them
    std::vector<std::string> keys;  ///< those still missing; it waits for the last one
  };

  explicit StoreSession(Socket socket) : socket_(std::move(socket)) {}

  /// Reads some of what has arrived. Returns a request when it is complete.
  std::optional<StoreRequest> read();
  void reply(uint64_t number, StoreStatus status, StoreTable::Value value);
  /// Sends what the socket takes now.
  void flush();

  int fd() const { return socket_.fd(); }
  bool has_output() const { return sent_ < output_bytes(); }

  std::optional<ParkedWait> parked;
  /// The epoll events that the server last asked for.
  uint32_t interest = 0;

 private:
  /// Returns nothing if there is nothing to read now.
  std::optional<std::string_view> receive(size_t at_most);
  size_t output_bytes() const { return head_.size() + (value_ ? value_->size() : 0); }

  Socket socket_;
  FrameReader reader_{kMaxRequestBytes};
  std::string head_;
  StoreTable::Value value_;
  size_t sent_ = 0;
};

}  // namespace trireme::net
