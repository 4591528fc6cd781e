#include "trireme/net/bytes.h"

namespace trireme::net {

std::string printable(std::string_view bytes) {
  constexpr size_t kLongest = 64;
  std::string text;
  for (const char byte : bytes.substr(0, kLongest)) {
    const bool is_plain = byte >= ' ' && byte <= '~';
    text += is_plain ? std::string(1, byte) : fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
  }
  if (bytes.size() > kLongest) text += "...";
  return text;
}

}  // namespace trireme::net
