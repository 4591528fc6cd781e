#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/net/store.h"

namespace trireme::net {

enum class StoreOp : uint8_t { Set = 1, Get, Wait, Add, CompareAndSet, Erase };

/// What a client asks, in one frame:
///   | number: 8 | op: 1 | delta: 8 | key length: 4 | key | value length: 4 | value | expected |
/// The value of a wait is the list of its keys, and the value of its reply the list of theirs:
///   | length: 4 | text | length: 4 | text | ...
/// A client has one request in flight on a connection. Sending another cancels it: that is how a
/// wait is cancelled when its deadline has passed.
struct StoreRequest {
  uint64_t number = 0;
  StoreOp op = StoreOp::Get;
  std::string key = {};
  std::string value = {};
  std::string expected = {};
  int64_t delta = 0;
};

enum class StoreStatus : uint8_t { Found = 1, Absent, Misuse };

/// What the server answers: | number of the request: 8 | status: 1 | value | The value of a Misuse
/// is the error message. Replies to cancelled requests may still arrive; the client recognises them
/// by their number.
struct StoreReply {
  uint64_t number = 0;
  StoreStatus status = StoreStatus::Absent;
  std::string value = {};
};

constexpr size_t kMaxRequestBytes = 25 + kMaxKeyBytes + 2 * kMaxValueBytes;
constexpr size_t kReplyHeaderBytes = 9;
constexpr size_t kMaxReplyBytes = kReplyHeaderBytes + kMaxListBytes;

std::string encode(const StoreRequest& request);
/// Throws CommError if the bytes are no request.
StoreRequest decode_request(std::string_view frame);

/// A reply without its value, but with the frame header.
std::string encode_reply_head(uint64_t number, StoreStatus status, size_t value_bytes);
StoreReply decode_reply(std::string_view frame);

void put_in_list(std::string& list, std::string_view text);
/// Throws CommError if the bytes are no list.
std::vector<std::string> decode_list(std::string_view list);

}  // namespace trireme::net
