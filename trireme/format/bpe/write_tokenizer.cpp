#include <fmt/format.h>

#include "trireme/format/bpe/splitter.h"
#include "trireme/format/bpe/tokenizer_files.h"
#include "trireme/format/bpe/train.h"

namespace trireme::format {

namespace {

std::string json_text(std::string_view text) {
  return SortedJson(text).dump();
}

/// The entries on lines of their own.
template <class List, class Entry>
std::string lines(const List& list, const Entry& entry) {
  std::string all;
  for (size_t i = 0; i < list.size(); ++i)
    all += (i == 0 ? "\n      " : ",\n      ") + entry(i, list[i]);
  return all;
}

std::string pre_tokenizer_of(Family family) {
  constexpr const char* kByteLevel =
      R"({{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": {}}})";
  if (family == Family::Gpt2) return fmt::format(kByteLevel, true);
  const auto pattern = family == Family::Llama3 ? kLlama3Pattern : kQwenPattern;
  return fmt::format(R"({{"type": "Sequence", "pretokenizers": [
    {{"type": "Split", "pattern": {{"Regex": {}}}, "behavior": "Isolated", "invert": false}},
    {}]}})",
                     json_text(pattern), fmt::format(kByteLevel, false));
}

}  // namespace

std::string to_tokenizer_json(const TrainedBpe& trained) {
  const auto added = [](size_t id, const std::string& token) {
    return fmt::format(R"({{"id": {}, "content": {}, "single_word": false, "lstrip": false, )"
                       R"("rstrip": false, "normalized": false, "special": true}})",
                       id, json_text(token));
  };
  const auto entry = [](size_t id, const std::string& token) {
    return fmt::format("{}: {}", json_text(token), id);
  };
  const auto merge = [](size_t, const std::pair<std::string, std::string>& pair) {
    return fmt::format("[{}, {}]", json_text(pair.first), json_text(pair.second));
  };
  return fmt::format(
      R"({{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [{}
  ],
  "normalizer": {},
  "pre_tokenizer": {},
  "post_processor": null,
  "decoder": {{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}},
  "model": {{
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": {{{}
    }},
    "merges": [{}
    ]
  }}
}}
)",
      lines(trained.special, added), trained.family == Family::Qwen ? R"({"type": "NFC"})" : "null",
      pre_tokenizer_of(trained.family), lines(trained.vocab, entry), lines(trained.merges, merge));
}

}  // namespace trireme::format
