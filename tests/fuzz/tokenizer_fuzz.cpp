// Any text as tokenizer.json: refused with an Error, or every text comes back from its tokens.
#include <string_view>

#include "fuzz/fuzz.h"
#include "trireme/core/error.h"
#include "trireme/format/tokenizer.h"

using namespace trireme;

namespace {

std::string without_spaces(std::string text) {
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  return text;
}

/// Normalising changes nothing in `text`. White space beside an added token goes with it, if the
/// token says so ("lstrip", "rstrip").
void must_come_back(const format::Tokenizer& tokenizer, const std::string& text, bool may_strip) {
  const auto ids = tokenizer.encode(text, format::Around::Nothing);
  for (const int32_t id : ids) fuzz::must(id >= 0 && id < tokenizer.vocab_size());
  const std::string back = tokenizer.decode(ids);
  fuzz::must(may_strip ? without_spaces(back) == without_spaces(text) : back == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const fuzz::MemoryFile file;
  file.put(data, bytes);
  const std::string_view given(reinterpret_cast<const char*>(data), bytes);
  const bool may_strip = given.find("strip") != given.npos || given.find("\\u") != given.npos;
  try {
    const auto tokenizer = format::load_tokenizer(file.path());
    must_come_back(*tokenizer, "a b\xC3 12 <|x|> \xFF\u65E5\u672C aaaaaaaaaaaaaaaaaaaaaaaaaaaa\n",
                   may_strip);
    for (const int32_t id : tokenizer->encode("cafe\u0301 caf\u00E9 <|x|>"))  // with all around it
      fuzz::must(id >= 0 && id < tokenizer->vocab_size());
    tokenizer->identity();
  } catch (const Error&) {
  }
  return 0;
}
