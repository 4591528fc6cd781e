#pragma once

#include <string_view>

#include "trireme/format/bpe/unicode.h"

namespace trireme::format {

/// Walks over a text while the characters are of one class.
class Scan {
 public:
  explicit Scan(std::string_view text) : text_(text) {}

  bool at_end(size_t at) const { return at == text_.size(); }
  Char at(size_t at) const { return char_at(text_, at); }
  /// Other at the end of the text: ask at_end first.
  CharClass class_at(size_t at) const {
    return at_end(at) ? CharClass::Other : class_of(char_at(text_, at).code);
  }
  bool is_newline(size_t at) const {
    return !at_end(at) && (text_[at] == '\n' || text_[at] == '\r');
  }

  /// The end of the run of `wanted` from `at`.
  size_t run(CharClass wanted, size_t at) const {
    while (at < text_.size()) {
      const Char c = char_at(text_, at);
      if (class_of(c.code) != wanted) break;
      at += c.bytes;
    }
    return at;
  }

  /// \s+(?!\S)|\s+ from a white space: all of them, but the last stays with what follows.
  size_t spaces(size_t begin, size_t end) const {
    if (at_end(end)) return end;
    size_t last = end - 1;  // where the last white space begins
    while ((static_cast<unsigned char>(text_[last]) & 0xC0) == 0x80) --last;
    return last > begin ? last : end;
  }

 private:
  std::string_view text_;
};

}  // namespace trireme::format
