// The pattern of Llama 3 and Qwen by hand. The first alternative that matches is the piece:
//
//   (?i:'s|'t|'re|'ve|'m|'ll|'d)    a contraction in any case
//   [^\r\n\p{L}\p{N}]?\p{L}+        letters, perhaps with one character before them
//   \p{N}{1,3} or \p{N}             a few digits
//    ?[^\s\p{L}\p{N}]+[\r\n]*       anything else, perhaps with a space before and newlines after
//   \s*[\r\n]+                      white space up to its last newline
//   \s+(?!\S)|\s+                   white space, but the last of several stays with what follows
#include "trireme/format/bpe/scan.h"
#include "trireme/format/bpe/splitter.h"

namespace trireme::format {

namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// The bytes of the contraction at an apostrophe, or 0. U+017F is an s in another case.
size_t llama3_contraction(std::string_view text) {
  if (text.size() < 2) return 0;
  const char first = lower(text[1]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (text.size() < 3) return 0;
  const char second = lower(text[2]);
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  return text.substr(1, 2) == "\u017F" ? 3 : 0;
}

class Llama3Splitter : public Splitter {
 public:
  explicit Llama3Splitter(int digits) : digits_(digits) {}

  size_t end_of(std::string_view text, size_t begin) const override {
    const Scan scan(text);
    if (text[begin] == '\'')
      if (const size_t bytes = llama3_contraction(text.substr(begin)); bytes != 0)
        return begin + bytes;
    const Char first = scan.at(begin);
    const size_t next = begin + first.bytes;
    switch (class_of(first.code)) {
      case CharClass::Letter: return scan.run(CharClass::Letter, next);
      case CharClass::Number: return end_of_number(scan, next);
      case CharClass::Other:
        if (scan.class_at(next) == CharClass::Letter) return scan.run(CharClass::Letter, next);
        return end_of_others(scan, next);
      case CharClass::Space: break;
    }
    if (!scan.is_newline(begin) && scan.class_at(next) == CharClass::Letter)
      return scan.run(CharClass::Letter, next);
    if (first.code == ' ' && !scan.at_end(next) && scan.class_at(next) == CharClass::Other)
      return end_of_others(scan, next);
    const size_t end = scan.run(CharClass::Space, next);
    for (size_t newline = end; newline > begin; --newline)
      if (scan.is_newline(newline - 1)) return newline;
    return scan.spaces(begin, end);
  }

 private:
  size_t end_of_number(const Scan& scan, size_t at) const {
    for (int more = 1; more < digits_ && scan.class_at(at) == CharClass::Number; ++more)
      at += scan.at(at).bytes;
    return at;
  }

  static size_t end_of_others(const Scan& scan, size_t at) {
    at = scan.run(CharClass::Other, at);
    while (scan.is_newline(at)) ++at;
    return at;
  }

  int digits_;
};

}  // namespace

std::unique_ptr<const Splitter> make_llama3_splitter(int digits) {
  return std::make_unique<Llama3Splitter>(digits);
}

}  // namespace trireme::format
