#include "trireme/format/bpe/splitter.h"

namespace trireme::format {

std::unique_ptr<const Splitter> make_splitter(const std::string& pattern) {
  if (pattern == kGpt2Pattern) return make_gpt2_splitter();
  if (pattern == kLlama3Pattern) return make_llama3_splitter(3);
  if (pattern == kQwenPattern) return make_llama3_splitter(1);
  return make_regex_splitter(pattern);
}

}  // namespace trireme::format
