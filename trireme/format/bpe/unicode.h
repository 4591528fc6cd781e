#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::format {

/// What split patterns ask of a character: \p{L}, \p{N}, \s, or none of them.
enum class CharClass : uint8_t { Other, Letter, Number, Space };

/// Code points [first, last].
struct CodeRange {
  uint32_t first, last;
};
extern const std::span<const CodeRange> kLetters, kNumbers, kSpaces;

/// A byte that is not part of well-formed UTF-8 is a character of its own, of class Other.
constexpr uint32_t kNotText = 0x110000;

struct Char {
  uint32_t code;   ///< kNotText for a stray byte
  uint32_t bytes;  ///< 1 to 4
};

/// The character at `at` < text.size(), when its first byte is not ASCII.
Char long_char_at(std::string_view text, size_t at);

inline Char char_at(std::string_view text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  return first < 0x80 ? Char{first, 1} : long_char_at(text, at);
}

/// One class for every code point, and for kNotText.
const CharClass* char_classes();

inline CharClass class_of(uint32_t code) {
  static const CharClass* const classes = char_classes();
  return classes[code];
}

/// Appends the UTF-8 of a code point.
void append_utf8(uint32_t code, std::string& to);

/// Whether all of the text is well-formed UTF-8.
bool is_utf8(std::string_view text);

}  // namespace trireme::format
