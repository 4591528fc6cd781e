// Any text as tokenizer.json: refused with an Error, or every text comes back from its tokens.
#include "fuzz/fuzz.h"
#include "trireme/core/error.h"
#include "trireme/format/tokenizer.h"

using namespace trireme;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const fuzz::MemoryFile file;
  file.put(data, bytes);
  try {
    const auto tokenizer = format::load_tokenizer(file.path());
    const std::string text =
        "a b\xC3 12 <|x|> caf\u00E9 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n";
    for (const int32_t id : tokenizer->encode(text))
      fuzz::must(id >= 0 && id < tokenizer->vocab_size());
    tokenizer->identity();
  } catch (const Error&) {
  }
  return 0;
}
