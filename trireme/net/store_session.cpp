#include "trireme/net/store_session.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "trireme/core/error.h"

namespace trireme::net {

namespace {

/// How much of one client is read at a time, before the others get their turn.
constexpr size_t kBytesPerTurn = 64 << 10;

}  // namespace

std::optional<std::string_view> StoreSession::receive(size_t at_most) {
  // One buffer for all clients of the thread: an idle client has none.
  // Aligned, because mold 1.10 lays out programs that cannot start around thread-locals that are
  // not.
  alignas(64) static thread_local std::array<char, kBytesPerTurn> buffer;
  const ssize_t received =
      ::recv(socket_.fd(), buffer.data(), std::min(at_most, buffer.size()), MSG_DONTWAIT);
  if (received > 0) return std::string_view(buffer.data(), static_cast<size_t>(received));
  if (received == 0) throw CommError("closed the connection");
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return std::nullopt;
  throw CommError(core::errno_text(errno));
}

std::optional<StoreRequest> StoreSession::read() {
  if (has_output()) return std::nullopt;
  for (size_t budget = kBytesPerTurn; budget > 0;) {
    const auto bytes = receive(std::min(budget, reader_.wanted()));
    if (!bytes) return std::nullopt;
    budget -= bytes->size();
    reader_.feed(*bytes);
    if (const auto frame = reader_.take()) return decode_request(*frame);
  }
  return std::nullopt;
}

void StoreSession::reply(uint64_t number, StoreStatus status, StoreTable::Value value) {
  head_ = encode_reply_head(number, status, value ? value->size() : 0);
  value_ = std::move(value);
  sent_ = 0;
}

void StoreSession::flush() {
  while (has_output()) {
    // sendmsg does not write through these pointers, although they are not const.
    const size_t head_left = head_.size() - std::min(sent_, head_.size());
    const size_t value_sent = sent_ - (head_.size() - head_left);
    std::array<iovec, 2> parts{};
    size_t num_parts = 0;
    if (head_left > 0) parts[num_parts++] = {head_.data() + sent_, head_left};
    if (value_ && value_sent < value_->size())
      parts[num_parts++] = {const_cast<char*>(value_->data()) + value_sent,
                            value_->size() - value_sent};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = num_parts;
    const ssize_t sent = ::sendmsg(socket_.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      sent_ += static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      throw CommError(core::errno_text(errno));
    }
  }
  head_.clear();
  value_.reset();
  sent_ = 0;
}

}  // namespace trireme::net
