#include "trireme/format/bpe/byte_alphabet.h"

#include <array>

#include "trireme/format/bpe/unicode.h"

namespace trireme::format {

namespace {

constexpr uint32_t kEnd = 256 + 68;  // 188 bytes are printable, 68 are not

constexpr bool is_printable(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

struct Alphabet {
  std::array<uint32_t, 256> code_of{};
  std::array<int, kEnd> byte_of{};  ///< -1: not in the alphabet
};

constexpr Alphabet kAlphabet = [] {
  Alphabet all;
  for (int& each : all.byte_of) each = -1;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    all.code_of[byte] = is_printable(byte) ? byte : next++;
    all.byte_of[all.code_of[byte]] = static_cast<int>(byte);
  }
  return all;
}();

}  // namespace

std::string spelled(std::string_view bytes) {
  std::string token;
  for (const unsigned char byte : bytes) append_utf8(kAlphabet.code_of[byte], token);
  return token;
}

std::optional<std::string> unspelled(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const Char c = char_at(token, at);
    if (c.code >= kEnd || kAlphabet.byte_of[c.code] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte_of[c.code]);
    at += c.bytes;
  }
  return bytes;
}

}  // namespace trireme::format
