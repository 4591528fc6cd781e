#include "trireme/net/tcp_store.h"

#include <algorithm>
#include <array>

#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/net/bytes.h"
#include "trireme/net/frame.h"
#include "trireme/net/store_protocol.h"
#include "trireme/net/store_table.h"

namespace trireme::net {

/// One connection with one request at a time. If a deadline cuts a reply short, the next call reads
/// it to its end, so a wait that timed out needs no new connection.
class TcpStore::Connection {
 public:
  Connection(const Address& server, const StoreOptions& options, Deadline deadline)
      : socket_(
            connect_and_prove(server, "store", options.secret, options.identity, deadline).socket) {
  }

  StoreReply call(StoreRequest& request, Deadline deadline) {
    request.number = ++number_;
    is_usable_ = false;
    send_frame(socket_, encode(request), deadline);
    is_usable_ = true;
    owes_reply_ = true;
    for (;;) {
      StoreReply reply = next_reply(deadline);
      if (reply.number != number_) continue;
      owes_reply_ = false;
      return reply;
    }
  }

  /// While an old reply may be in flight, the server may not read before we do. A small request is
  /// still fine, since the kernel takes it at once.
  bool can_carry(const StoreRequest& request) const {
    constexpr size_t kSmall = 8 << 10;
    return !owes_reply_ || request.value.size() + request.expected.size() < kSmall;
  }

  /// False after half a request was sent or nonsense was received.
  bool is_usable() const { return is_usable_; }
  Address local() const { return socket_.local(); }

 private:
  StoreReply next_reply(Deadline deadline) {
    std::array<char, 16 << 10> bytes;
    try {
      for (;;) {
        if (const auto frame = reader_.take()) return decode_reply(*frame);
        const size_t room = std::min(bytes.size(), reader_.wanted());
        reader_.feed({bytes.data(), socket_.recv_some(bytes.data(), room, deadline)});
      }
    } catch (const TimeoutError&) {
      throw;
    } catch (const CommError&) {
      is_usable_ = false;
      throw;
    }
  }

  Socket socket_;
  FrameReader reader_{kMaxReplyBytes};
  uint64_t number_ = 0;
  bool is_usable_ = true;
  bool owes_reply_ = false;
};

TcpStore::TcpStore(const Address& server, const Secret& secret, const Identity& me,
                   Deadline deadline)
    : server_(server), options_{secret, me} {
  auto first = take_connection(deadline);
  local_address_ = first->local();
  idle_.push_back(std::move(first));
}

TcpStore::~TcpStore() = default;

std::unique_ptr<TcpStore::Connection> TcpStore::take_connection(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  return std::make_unique<Connection>(server_, options_, deadline);
}

StoreReply TcpStore::call(StoreRequest request, Deadline deadline) {
  check_sizes(request.key, request.value, request.expected);
  const auto start = Clock::now();
  const auto name = [&] {
    return fmt::format("'{}' of the store at {}", printable(request.key), server_.to_string());
  };
  std::unique_ptr<Connection> connection;
  StoreReply reply;
  const auto keep = [&] {
    if (!connection || !connection->is_usable()) return;
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(connection));
  };
  try {
    connection = take_connection(deadline);
    if (!connection->can_carry(request))
      connection = std::make_unique<Connection>(server_, options_, deadline);
    reply = connection->call(request, deadline);
    keep();
  } catch (const TimeoutError& error) {
    keep();
    const auto waited = core::format_duration(Clock::now() - start);
    if (request.op == StoreOp::Wait)
      throw TimeoutError(fmt::format("wait for key {}: nobody set it in {}", name(), waited));
    throw TimeoutError(fmt::format("key {}: no answer in {} ({})", name(), waited, error.what()));
  } catch (const CommError& error) {
    throw CommError(fmt::format("key {}: {}", name(), error.what()));
  }
  if (reply.status == StoreStatus::Misuse) throw MisuseError(reply.value);
  return reply;
}

void TcpStore::set(const std::string& key, const std::string& value, Deadline deadline) {
  call({.op = StoreOp::Set, .key = key, .value = value}, deadline);
}

std::optional<std::string> TcpStore::get(const std::string& key, Deadline deadline) {
  StoreReply reply = call({.op = StoreOp::Get, .key = key}, deadline);
  if (reply.status == StoreStatus::Absent) return std::nullopt;
  return std::move(reply.value);
}

std::vector<std::string> TcpStore::wait_all(const std::vector<std::string>& keys,
                                            Deadline deadline) {
  StoreRequest request{.op = StoreOp::Wait,
                       .key = keys.front()};  // the key is only for error messages
  for (const std::string& key : keys) {
    check_sizes(key);
    put_in_list(request.value, key);
  }
  auto values = decode_list(call(std::move(request), deadline).value);
  if (values.size() != keys.size())
    throw CommError(fmt::format("the store at {} answers a wait for {} keys with {} values",
                                server_.to_string(), keys.size(), values.size()));
  return values;
}

int64_t TcpStore::add(const std::string& key, int64_t delta, Deadline deadline) {
  const StoreReply reply = call({.op = StoreOp::Add, .key = key, .delta = delta}, deadline);
  const auto sum = core::parse_int(reply.value);
  if (!sum)
    throw CommError(fmt::format("the store at {} answers an add to '{}' with '{}'",
                                server_.to_string(), printable(key), printable(reply.value)));
  return *sum;
}

std::string TcpStore::compare_and_set(const std::string& key, const std::string& expected,
                                      const std::string& desired, Deadline deadline) {
  return call({.op = StoreOp::CompareAndSet, .key = key, .value = desired, .expected = expected},
              deadline)
      .value;
}

bool TcpStore::erase(const std::string& key, Deadline deadline) {
  return call({.op = StoreOp::Erase, .key = key}, deadline).status == StoreStatus::Found;
}

std::unique_ptr<TcpStore> connect_store(const Address& server, const Secret& secret,
                                        const Identity& me, Deadline deadline) {
  return std::make_unique<TcpStore>(server, secret, me, deadline);
}

}  // namespace trireme::net
