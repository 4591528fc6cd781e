// tokenizer.json, as Hugging Face writes it:
//
//   { "version": "1.0", "truncation": null, "padding": null,
//     "added_tokens": [{"id": 0, "content": "<|endoftext|>", "special": true, ...}, ...],
//     "normalizer": null | {"type": "NFC"},
//     "pre_tokenizer": ByteLevel that splits like GPT-2 | Sequence of Split by a pattern,
//     ByteLevel, "post_processor": null | ByteLevel | TemplateProcessing | Sequence of these,
//     "decoder": null | ByteLevel,
//     "model": {"type": "BPE", "vocab": {"a": 0, ...}, "merges": ["a b" or ["a", "b"], ...], ...} }
#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/format/bpe/splitter.h"
#include "trireme/format/bpe/tokenizer_files.h"

namespace trireme::format {

namespace {

class TokenizerJson {
 public:
  explicit TokenizerJson(const std::string& path) : path_(path), json_(read_json_file(path)) {}

  BpeFacts read() {
    if (!json_.is_object() || !json_.contains("model"))
      refuse("is not a tokenizer: it has no 'model'");
    only(json_, "tokenizer.json",
         {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
          "post_processor", "decoder", "model"});
    for (const char* key : {"truncation", "padding"})
      if (!is_null(json_, key)) refuse(fmt::format("asks for {}, which is not supported", key));
    facts_.path = path_;
    read_model(json_.at("model"));
    read_added();
    read_normalizer(part("normalizer"));
    read_pre_tokenizer(part("pre_tokenizer"));
    read_post_processor(part("post_processor"));
    if (const auto& decoder = part("decoder");
        !decoder.is_null() && type_of(decoder) != "ByteLevel")
      unsupported("decoder", decoder, "ByteLevel");
    return std::move(facts_);
  }

 private:
  [[noreturn]] void refuse(const std::string& sentence) const {
    throw Error(fmt::format("{} {}", path_, sentence));
  }
  [[noreturn]] void unsupported(const char* what, const SortedJson& json, const char* can) const {
    refuse(fmt::format("has the {} '{}', which is not supported; {} is", what, type_of(json), can));
  }
  static std::string type_of(const SortedJson& json) {
    const bool has = json.is_object() && json.contains("type") && json["type"].is_string();
    return has ? json["type"].get<std::string>() : "without a type";
  }
  static bool is_null(const SortedJson& json, const char* key) {
    return !json.contains(key) || json[key].is_null();
  }
  const SortedJson& part(const char* key) const {
    static const SortedJson none;
    return json_.contains(key) ? json_[key] : none;
  }
  /// What nobody here knows of may matter.
  void only(const SortedJson& json, const char* where, std::vector<std::string> known) const {
    for (const auto& [key, value] : json.items())
      if (std::ranges::find(known, key) == known.end())
        refuse(fmt::format("has '{}' in its {}, which is not supported", key, where));
  }
  bool flag(const SortedJson& json, const char* key, bool otherwise) const {
    if (is_null(json, key)) return otherwise;
    if (!json[key].is_boolean()) refuse(fmt::format("has a '{}' that is not true or false", key));
    return json[key].get<bool>();
  }
  std::string text(const SortedJson& json, const char* key) const {
    if (is_null(json, key) || !json[key].is_string())
      refuse(fmt::format("has a part without the text '{}'", key));
    return json[key].get<std::string>();
  }
  int32_t id(const SortedJson& json) const {
    if (!json.is_number_unsigned() || json.get<uint64_t>() > 0x7FFFFFFF)
      refuse("has a token whose id is not a whole number from 0");
    return json.get<int32_t>();
  }
  const SortedJson& list(const SortedJson& json, const char* key) const {
    static const SortedJson none = SortedJson::array();
    if (is_null(json, key)) return none;
    if (!json[key].is_array()) refuse(fmt::format("has a '{}' that is not a list", key));
    return json[key];
  }

  void read_model(const SortedJson& model);
  void read_added();
  void read_normalizer(const SortedJson& json);
  void read_pre_tokenizer(const SortedJson& json);
  void read_split(const SortedJson& json);
  bool read_byte_level(const SortedJson& json);
  void read_post_processor(const SortedJson& json);
  void read_template(const SortedJson& json);

  std::string path_;
  SortedJson json_;
  BpeFacts facts_;
};

void TokenizerJson::read_model(const SortedJson& model) {
  // Old files do not say which model theirs is.
  const bool old = model.is_object() && !model.contains("type") && model.contains("merges");
  if (!old && type_of(model) != "BPE") unsupported("model", model, "BPE");
  only(model, "model",
       {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
        "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    if (!is_null(model, key) && model[key] != "" && model[key] != 0.0)
      refuse(fmt::format("has '{}' in its model, which is not supported", key));
  if (flag(model, "byte_fallback", false))
    refuse("has byte_fallback in its model, which is not supported: byte-level BPE is");
  facts_.ignore_merges = flag(model, "ignore_merges", false);
  facts_.vocab = parse_vocab(is_null(model, "vocab") ? SortedJson() : model["vocab"],
                             path_ + ": its model's vocab");
  for (const SortedJson& merge : list(model, "merges")) {
    if (merge.is_string()) {
      const auto rank = fmt::format("{}: merge {}", path_, facts_.merges.size());
      facts_.merges.push_back(parse_merge(merge.get<std::string>(), rank));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      facts_.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      refuse(fmt::format("has a merge {} that is not two tokens", facts_.merges.size()));
    }
  }
}

void TokenizerJson::read_added() {
  for (const SortedJson& token : list(json_, "added_tokens")) {
    if (!token.is_object() || !token.contains("id")) refuse("has an added token without an id");
    only(token, "added tokens",
         {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    const std::string content = text(token, "content");
    if (flag(token, "single_word", false))
      refuse(fmt::format("has the added token '{}' with single_word, which is not supported",
                         content));
    facts_.added.push_back({.id = id(token["id"]),
                            .content = content,
                            .special = flag(token, "special", false),
                            .normalized = flag(token, "normalized", true),
                            .lstrip = flag(token, "lstrip", false),
                            .rstrip = flag(token, "rstrip", false)});
  }
}

void TokenizerJson::read_normalizer(const SortedJson& json) {
  if (json.is_null()) return;
  if (type_of(json) == "Sequence") {
    for (const SortedJson& each : list(json, "normalizers")) read_normalizer(each);
    return;
  }
  if (type_of(json) != "NFC") unsupported("normalizer", json, "NFC");
  facts_.nfc = true;
}

/// Whether it splits, too.
bool TokenizerJson::read_byte_level(const SortedJson& json) {
  only(json, "ByteLevel", {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (flag(json, "add_prefix_space", true))
    refuse("has a ByteLevel with add_prefix_space, which is not supported");
  return flag(json, "use_regex", true);
}

void TokenizerJson::read_split(const SortedJson& json) {
  only(json, "Split", {"type", "pattern", "behavior", "invert"});
  if (flag(json, "invert", false)) refuse("has a Split with invert, which is not supported");
  if (text(json, "behavior") != "Isolated")
    refuse(fmt::format("has a Split with the behavior '{}', which is not supported; Isolated is",
                       text(json, "behavior")));
  const SortedJson& pattern = is_null(json, "pattern") ? json : json["pattern"];
  if (!pattern.is_object() || !pattern.contains("Regex"))
    refuse("has a Split whose pattern is no Regex, which is not supported");
  facts_.pattern = text(pattern, "Regex");
}

void TokenizerJson::read_pre_tokenizer(const SortedJson& json) {
  if (type_of(json) == "ByteLevel") {
    if (!read_byte_level(json))
      refuse("has a ByteLevel without a pattern as its pre_tokenizer, which is not supported");
    facts_.pattern = kGpt2Pattern;
    return;
  }
  const SortedJson& parts = type_of(json) == "Sequence" ? list(json, "pretokenizers") : json;
  if (!parts.is_array() || parts.size() != 2 || type_of(parts[0]) != "Split" ||
      type_of(parts[1]) != "ByteLevel")
    unsupported("pre_tokenizer", json, "ByteLevel, or a Sequence of one Split and ByteLevel,");
  read_split(parts[0]);
  if (read_byte_level(parts[1]))
    refuse("splits by two patterns, which is not supported: its ByteLevel has use_regex");
}

void TokenizerJson::read_template(const SortedJson& json) {
  const SortedJson& known = is_null(json, "special_tokens") ? json : json["special_tokens"];
  bool seen = false;
  for (const SortedJson& each : list(json, "single")) {
    if (each.is_object() && each.contains("Sequence")) {
      if (seen) refuse("has a post_processor that repeats the text, which is not supported");
      seen = true;
      continue;
    }
    if (!each.is_object() || !each.contains("SpecialToken") || !each["SpecialToken"].is_object())
      refuse("has a post_processor with a part that is neither Sequence nor SpecialToken");
    const std::string name = text(each["SpecialToken"], "id");
    if (!known.is_object() || !known.contains(name) || !known[name].is_object())
      refuse(fmt::format("has a post_processor that does not say which token '{}' is", name));
    for (const SortedJson& token : list(known[name], "ids"))
      (seen ? facts_.after : facts_.before).push_back(id(token));
  }
  if (!seen) refuse("has a post_processor that drops the text");
}

void TokenizerJson::read_post_processor(const SortedJson& json) {
  if (json.is_null() || type_of(json) == "ByteLevel") return;  // that one only moves offsets
  if (type_of(json) == "Sequence") {
    for (const SortedJson& each : list(json, "processors")) read_post_processor(each);
    return;
  }
  if (type_of(json) != "TemplateProcessing")
    unsupported("post_processor", json, "TemplateProcessing");
  if (!facts_.before.empty() || !facts_.after.empty())
    refuse("has two templates in its post_processor, which is not supported");
  read_template(json);
}

}  // namespace

BpeFacts read_tokenizer_json(const std::string& path) {
  return TokenizerJson(path).read();
}

}  // namespace trireme::format
