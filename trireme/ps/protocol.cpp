#include "trireme/ps/protocol.h"

#include <utility>

#include "trireme/ps/archive.h"

namespace trireme::ps {

namespace {

template <size_t... Kinds>
bool read_body(uint8_t kind, Reader& reader, Body& body, std::index_sequence<Kinds...>) {
  return ((kind == Kinds && (reader(body.emplace<Kinds>()), true)) || ...);
}

}  // namespace

Frame encode(const Header& header, const Body& body) {
  constexpr size_t kUsual = 256;  // a request without keys
  Writer writer(kUsual);
  writer(header, static_cast<uint8_t>(body.index()));
  std::visit([&](const auto& fields) { writer(fields); }, body);
  return writer.take_frame();
}

Message decode(const Frame& frame) {
  Reader reader(frame);
  Message message;
  uint8_t kind = 0;
  reader(message.header, kind);
  if (!read_body(kind, reader, message.body, std::make_index_sequence<std::variant_size_v<Body>>{}))
    throw CommError(fmt::format("sent a message of the unknown kind {}", kind));
  reader.finish();
  return message;
}

}  // namespace trireme::ps
