#include "trireme/net/store_protocol.h"

#include "trireme/core/error.h"
#include "trireme/net/bytes.h"
#include "trireme/net/frame.h"

namespace trireme::net {

namespace {

/// Reads an enum whose values are 1 to `last`. Throws CommError, with `what`, for another number.
template <class Enum>
Enum read_enum(ByteReader& reader, Enum last, std::string_view what) {
  const auto value = reader.number<uint8_t>();
  if (value < 1 || value > static_cast<uint8_t>(last))
    throw CommError(fmt::format("sent {} {}", what, value));
  return static_cast<Enum>(value);
}

}  // namespace

std::string encode(const StoreRequest& request) {
  std::string frame;
  put(frame, request.number);
  put(frame, static_cast<uint8_t>(request.op));
  put(frame, static_cast<uint64_t>(request.delta));
  put_text<uint32_t>(frame, request.key);
  put_text<uint32_t>(frame, request.value);
  frame += request.expected;
  return frame;
}

StoreRequest decode_request(std::string_view frame) {
  ByteReader reader(frame);
  StoreRequest request;
  request.number = reader.number<uint64_t>();
  request.op = read_enum(reader, StoreOp::Erase, "the unknown store operation");
  request.delta = static_cast<int64_t>(reader.number<uint64_t>());
  request.key = reader.text<uint32_t>();
  request.value = reader.text<uint32_t>();
  request.expected = reader.rest();
  return request;
}

std::string encode_reply_head(uint64_t number, StoreStatus status, size_t value_bytes) {
  std::string head = frame_header(kReplyHeaderBytes + value_bytes);
  put(head, number);
  put(head, static_cast<uint8_t>(status));
  return head;
}

StoreReply decode_reply(std::string_view frame) {
  ByteReader reader(frame);
  return {.number = reader.number<uint64_t>(),
          .status = read_enum(reader, StoreStatus::Misuse, "a reply with the unknown status"),
          .value = std::string(reader.rest())};
}

void put_in_list(std::string& list, std::string_view text) {
  put_text<uint32_t>(list, text);
}

std::vector<std::string> decode_list(std::string_view list) {
  std::vector<std::string> texts;
  for (ByteReader reader(list); !reader.rest().empty();)
    texts.emplace_back(reader.text<uint32_t>());
  return texts;
}

}  // namespace trireme::net
