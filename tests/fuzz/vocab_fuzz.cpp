// Any bytes as vocab.json and, behind the first NUL, merges.txt: refused with an Error, or usable.
// All bytes are added to the vocabulary first, which is refused without them.
#include <algorithm>

#include "fuzz/fuzz.h"
#include "trireme/core/error.h"
#include "trireme/format/bpe/byte_alphabet.h"
#include "trireme/format/bpe/tokenizer_files.h"

using namespace trireme;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const fuzz::MemoryFile vocab, merges;
  const std::string_view all(reinterpret_cast<const char*>(data), bytes);
  const size_t end = std::min(all.find('\0'), all.size());
  vocab.put(data, end);
  merges.put(data + std::min(end + 1, bytes), bytes - std::min(end + 1, bytes));
  try {
    format::BpeFacts facts = format::read_vocab_and_merges(vocab.path(), merges.path());
    int32_t next = 0;
    for (const auto& [name, id] : facts.vocab) next = std::max(next, id);
    if (next > 100'000) return 0;  // their table would take long
    for (int byte = 0; byte < 256; ++byte) {
      const std::string name = format::spelled(std::string(1, static_cast<char>(byte)));
      const auto same = [&](const auto& each) { return each.first == name; };
      if (std::ranges::none_of(facts.vocab, same)) facts.vocab.emplace_back(name, ++next);
    }
    const auto tokenizer = format::make_bpe_tokenizer(std::move(facts));
    const std::string text = "any text \xFF aabbab";
    fuzz::must(tokenizer->decode(tokenizer->encode(text)) == text);
  } catch (const Error&) {
  }
  return 0;
}
