// Text and tags. What stands around a tag goes as follows:
//
//   text \n    {%- tag -%} \n   text          - takes all white space on its side
//   text \n    {%  tag  %}\n    text          a block or comment takes the blanks of its line
//   before it,
//              ^^^^        ^^                 and the newline after it; {{ }} takes neither
#include "trireme/format/chat/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "trireme/core/error.h"
#include "trireme/format/bpe/unicode.h"

namespace trireme::format::chat {

namespace {

constexpr std::string_view kBlanks = " \t\n\r\f\v";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : normal_(with_newlines(source)), source_(normal_) {
    // One newline at the end of a file belongs to no text.
    if (source_.ends_with('\n')) source_.remove_suffix(1);
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const size_t tag = next_tag();
      take_text(tag);
      if (at_ < source_.size()) take_tag();
    }
    add(TokenType::End, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& sentence) const {
    throw Error(fmt::format("line {}: {}", line_, sentence));
  }
  void add(TokenType type, std::string_view text) {
    tokens_.push_back({type, std::string(text), line_});
  }
  void move_to(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end;
  }
  char peek(size_t ahead) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }

  size_t next_tag() const {
    for (size_t tag = source_.find('{', at_); tag != source_.npos;
         tag = source_.find('{', tag + 1)) {
      const char kind = tag + 1 < source_.size() ? source_[tag + 1] : ' ';
      if (kind == '{' || kind == '%' || kind == '#') return tag;
    }
    return source_.size();
  }

  void take_text(size_t tag) {
    std::string_view text = source_.substr(at_, tag - at_);
    const char kind = tag < source_.size() ? source_[tag + 1] : '\0';
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (kind != '\0' && sign == '-') {
      text = text.substr(0, text.find_last_not_of(kBlanks) + 1);
    } else if ((kind == '%' || kind == '#') && sign != '+') {
      const size_t line = text.find_last_of('\n') + 1;
      const bool from_start_of_line = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
      if (from_start_of_line && text.find_first_not_of(" \t", line) == text.npos)
        text = text.substr(0, line);
    }
    if (!text.empty()) add(TokenType::Text, text);
    move_to(tag);
  }

  void take_tag() {
    const char kind = source_[at_ + 1];
    const bool signed_too = peek(2) == '-' || (peek(2) == '+' && kind != '{');
    const int began = line_;
    if (kind == '#') {
      const size_t end = source_.find("#}", at_ + 2);
      if (end == source_.npos) fail("a comment is not closed");
      move_to(end);
      return close(2, source_[end - 1]);
    }
    at_ += signed_too ? 3 : 2;
    add(kind == '%' ? TokenType::BlockBegin : TokenType::PrintBegin, "");
    const std::string_view end = kind == '%' ? "%}" : "}}";
    int brackets = 0;
    for (;;) {
      move_to(std::min(source_.find_first_not_of(kBlanks, at_), source_.size()));
      if (at_ == source_.size()) throw Error(fmt::format("line {}: a tag is not closed", began));
      const bool is_signed = peek(0) == '-' || (peek(0) == '+' && kind == '%');
      if (brackets == 0 && source_.substr(at_ + (is_signed ? 1 : 0)).starts_with(end)) break;
      if (std::string_view("([{").find(peek(0)) != std::string_view::npos) ++brackets;
      if (std::string_view(")]}").find(peek(0)) != std::string_view::npos) --brackets;
      take_inside();
    }
    add(kind == '%' ? TokenType::BlockEnd : TokenType::PrintEnd, "");
    const char sign = peek(0);
    const bool is_signed = sign != end[0];
    if (kind == '%' || sign == '-') return close(is_signed ? 3 : 2, sign);
    at_ += 2;
  }

  /// Passes over the end of a tag and what it takes after it.
  void close(size_t bytes, char sign) {
    at_ += bytes;
    if (sign == '-')
      return move_to(std::min(source_.find_first_not_of(kBlanks, at_), source_.size()));
    if (sign == '+') return;
    if (peek(0) == '\n') move_to(at_ + 1);
  }

  void take_inside() {
    const char first = peek(0);
    if (first == '\'' || first == '"') return take_string(first);
    size_t end = at_;
    if (is_name(first)) {
      while (end < source_.size() && is_name(source_[end])) ++end;
      const bool number = is_digit(first);
      const bool fraction =
          number && end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1]);
      if (fraction)
        for (++end; end < source_.size() && is_digit(source_[end]);) ++end;
      add(number ? TokenType::Number : TokenType::Name, source_.substr(at_, end - at_));
      at_ = end;
      return;
    }
    static constexpr std::array<std::string_view, 26> kSigns = {
        "==", "!=", "<=", ">=", "//", "**", "<", ">", "=", "+", "-", "*", "/",
        "%",  "~",  "|",  ".",  ",",  ":",  "(", ")", "[", "]", "{", "}", "!"};
    const auto sign = std::ranges::find_if(
        kSigns, [&](std::string_view each) { return source_.substr(at_).starts_with(each); });
    if (sign == kSigns.end()) fail(fmt::format("'{}' is not expected in a tag", first));
    add(TokenType::Sign, *sign);
    at_ += sign->size();
  }

  void take_string(char quote) {
    const int began = line_;
    std::string text;
    size_t at = at_ + 1;
    for (; at < source_.size() && source_[at] != quote; ++at) {
      if (source_[at] != '\\' || at + 1 == source_.size()) {
        text += source_[at];
        continue;
      }
      at = take_escape(at + 1, text);
    }
    if (at >= source_.size()) throw Error(fmt::format("line {}: a string is not closed", began));
    add(TokenType::String, text);
    move_to(at + 1);
  }

  /// Of the character after a backslash; returns the last one that it takes.
  size_t take_escape(size_t at, std::string& text) const {
    const char c = source_[at];
    constexpr std::string_view kNames = "ntrabfv\\'\"\n", kValues = "\n\t\r\a\b\f\v\\'\"";
    if (c == '\n') return at;  // a line that goes on
    if (const size_t known = kNames.find(c); known < kValues.size()) {
      text += kValues[known];
      return at;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      (text += '\\') += c;
      return at;
    }
    uint32_t code = 0;
    for (size_t i = 1; i <= digits; ++i) {
      const char digit = at + i < source_.size() ? source_[at + i] : '\0';
      const size_t value =
          std::string_view("0123456789abcdef").find(static_cast<char>(digit | 0x20));
      if (value == std::string_view::npos) fail("a string has an escape that is cut short");
      code = code << 4 | static_cast<uint32_t>(value);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      fail("a string has an escape of no character");
    append_utf8(code, text);
    return at + digits;
  }

  /// Lines end in \n, whatever the file has.
  static std::string with_newlines(std::string_view source) {
    std::string all;
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
      all += source[i] == '\r' ? '\n' : source[i];
    }
    return all;
  }

  std::string normal_;
  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace trireme::format::chat
