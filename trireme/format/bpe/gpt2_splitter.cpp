// GPT-2's pattern by hand. The first alternative that matches is the piece:
//
//   's|'t|'re|'ve|'m|'ll|'d      a contraction
//    ?\p{L}+                     letters, perhaps with a space before them
//    ?\p{N}+                     numbers, likewise
//    ?[^\s\p{L}\p{N}]+           anything else, likewise
//   \s+(?!\S)|\s+                white space, but the last of several stays with what follows
#include "trireme/format/bpe/scan.h"
#include "trireme/format/bpe/splitter.h"

namespace trireme::format {

namespace {

/// The bytes of the contraction at an apostrophe, or 0.
size_t gpt2_contraction(std::string_view text) {
  for (const std::string_view each : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
    if (text.starts_with(each)) return each.size();
  return 0;
}

class Gpt2Splitter : public Splitter {
 public:
  size_t end_of(std::string_view text, size_t begin) const override {
    const Scan scan(text);
    if (text[begin] == '\'')
      if (const size_t bytes = gpt2_contraction(text.substr(begin)); bytes != 0)
        return begin + bytes;
    const Char first = scan.at(begin);
    CharClass kind = class_of(first.code);
    if (kind != CharClass::Space) return scan.run(kind, begin + first.bytes);
    const size_t next = begin + first.bytes;
    if (first.code == ' ' && !scan.at_end(next)) {
      kind = scan.class_at(next);
      if (kind != CharClass::Space) return scan.run(kind, next);
    }
    return scan.spaces(begin, scan.run(CharClass::Space, next));
  }
};

}  // namespace

std::unique_ptr<const Splitter> make_gpt2_splitter() {
  return std::make_unique<Gpt2Splitter>();
}

}  // namespace trireme::format
