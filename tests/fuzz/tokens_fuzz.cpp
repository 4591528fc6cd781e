// Any bytes as a file of raw or llm.c tokens: refused with an Error, or all of it can be read.
#include <vector>

#include "fuzz/fuzz.h"
#include "trireme/core/error.h"
#include "trireme/format/tokens.h"

using namespace trireme;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const fuzz::MemoryFile file;
  file.put(data, bytes);
  try {
    const format::TokenFile tokens(file.path());
    fuzz::must(tokens.size() > 0 && tokens.size() <= static_cast<int64_t>(bytes));
    std::vector<int64_t> all(static_cast<size_t>(tokens.size()));
    tokens.read(0, tokens.size(), all.data());
    fuzz::must(tokens.largest() >= all.back());
  } catch (const Error&) {
  }
  return 0;
}
