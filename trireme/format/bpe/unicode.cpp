#include "trireme/format/bpe/unicode.h"

#include <algorithm>

namespace trireme::format {

// Well-formed UTF-8: no surrogates, nothing above U+10FFFF, nothing longer than it need be. The
// second byte tells these apart:
//
//   first byte   C2..DF   E0        E1..EF (not ED)   ED        F0        F1..F3    F4
//   second       80..BF   A0..BF    80..BF            80..9F    90..BF    80..BF    80..8F
Char long_char_at(std::string_view text, size_t at) {
  constexpr Char kStray{kNotText, 1};
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const auto follows = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint32_t first = byte(0);
  const size_t left = text.size() - at;
  const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || left < bytes || !follows(1)) return kStray;
  if (bytes == 2) return {(first & 0x1F) << 6 | (byte(1) & 0x3Fu), 2};
  if (!follows(2)) return kStray;
  if (bytes == 3) {
    const uint32_t code = (first & 0x0F) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
    if (code < 0x800 || (code >= 0xD800 && code < 0xE000)) return kStray;
    return {code, 3};
  }
  if (!follows(3)) return kStray;
  const uint32_t code =
      (first & 0x07) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu);
  if (code < 0x10000 || code > 0x10FFFF) return kStray;
  return {code, 4};
}

const CharClass* char_classes() {
  static const std::vector<CharClass> all = [] {
    std::vector<CharClass> classes(kNotText + 1, CharClass::Other);
    const auto fill = [&](std::span<const CodeRange> ranges, CharClass each) {
      for (const CodeRange& range : ranges)
        std::fill(classes.begin() + range.first, classes.begin() + range.last + 1, each);
    };
    fill(kLetters, CharClass::Letter);
    fill(kNumbers, CharClass::Number);
    fill(kSpaces, CharClass::Space);
    return classes;
  }();
  return all.data();
}

void append_utf8(uint32_t code, std::string& to) {
  const auto put = [&](uint32_t byte) { to += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Char c = char_at(text, at);
    if (c.code == kNotText) return false;
    at += c.bytes;
  }
  return true;
}

}  // namespace trireme::format
