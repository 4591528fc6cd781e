// Any bytes as a chat template and, behind the first NUL, a line of a .jsonl file: refused with an
// Error, or answers lie inside the text.
#include "fuzz/fuzz.h"
#include "trireme/core/error.h"
#include "trireme/format/chat/chat_template.h"
#include "trireme/format/json_object.h"

using namespace trireme;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const auto tokenizer = format::load_tokenizer("bytes");
  const std::string_view all(reinterpret_cast<const char*>(data), bytes);
  const size_t end = std::min(all.find('\0'), all.size());
  std::string line =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})";
  if (end + 1 < all.size()) line = all.substr(end + 1);
  try {
    const format::ChatTemplate chat(std::string(all.substr(0, end)), "template");
    const auto talk = chat.converse(format::parse_untrusted(line, "line", 64), *tokenizer);
    size_t done = 0;
    for (const auto& answer : talk.answers) {
      fuzz::must(answer.begin >= done && answer.begin < answer.end &&
                 answer.end <= talk.text.size());
      done = answer.end;
    }
  } catch (const Error&) {
  }
  return 0;
}
