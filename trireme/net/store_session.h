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

/// One client of a StoreServer, which has proven itself: requests and replies over a non-blocking
/// socket. A request is read only when the reply before it is gone, so a client that never reads
/// costs one reply, and the value in it is shared with the table.
///
/// Every call returns at once and does a bounded amount of work. Throws CommError when the client
/// is gone or talks nonsense; it is to be dropped then.
class StoreSession {
 public:
  /// A wait that is parked until its keys exist.
  struct Parked {
    uint64_t number = 0;
    std::string list;               ///< the keys as they came
    std::vector<std::string> keys;  ///< the last is the one that it waits for now; those after it
                                    ///< exist, and were taken off
  };

  explicit StoreSession(Socket socket) : socket_(std::move(socket)) {}

  /// Reads some of what is there. Returns a request when one is whole.
  std::optional<StoreRequest> read();
  void reply(uint64_t number, StoreStatus status, StoreTable::Value value);
  /// Sends what the socket takes now.
  void flush();

  int fd() const { return socket_.fd(); }
  bool has_output() const { return sent_ < output_bytes(); }

  std::optional<Parked> parked;
  /// The epoll events that were last asked for.
  uint32_t interest = 0;

 private:
  /// Nothing when there is nothing to read now.
  std::optional<std::string_view> receive(size_t at_most);
  size_t output_bytes() const { return head_.size() + (value_ ? value_->size() : 0); }

  Socket socket_;
  FrameReader reader_{kMaxRequestBytes};
  std::string head_;
  StoreTable::Value value_;
  size_t sent_ = 0;
};

}  // namespace trireme::net
