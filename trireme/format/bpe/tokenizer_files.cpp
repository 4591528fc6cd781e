#include "trireme/format/bpe/tokenizer_files.h"

#include <limits>

#include "trireme/core/error.h"
#include "trireme/format/bpe/splitter.h"
#include "trireme/format/file.h"

namespace trireme::format {

namespace {

constexpr int64_t kMostTokenizerBytes = 256 << 20;
constexpr int kMostTokenizerDepth = 64;

/// How deep brackets are nested outside strings: parsers recurse.
int depth_of(std::string_view text) {
  int depth = 0, most = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\')
      ++i;
    else if (c == '"')
      in_string = !in_string;
    else if (!in_string && (c == '{' || c == '['))
      most = std::max(most, ++depth);
    else if (!in_string && (c == '}' || c == ']'))
      --depth;
  }
  return most;
}

/// "eos_token" is a string, or an object whose "content" is one.
std::string token_named(const SortedJson& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return "";
  const SortedJson& token =
      found->is_object() && found->contains("content") ? (*found)["content"] : *found;
  return token.is_string() ? token.get<std::string>() : "";
}

/// "chat_template" is a string, or a list of {name, template}: then the one named default.
std::string template_of(const SortedJson& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  for (const SortedJson& each : *found)
    if (each.is_object() && each.value("name", SortedJson()) == "default" &&
        each.contains("template") && each["template"].is_string())
      return each["template"].get<std::string>();
  return "";
}

/// The tokens that GPT-2's and Qwen's files list beside the vocabulary, all of them special.
void add_special(const SortedJson& config, BpeFacts& facts) {
  for (const auto& [name, id] : facts.vocab)
    if (name == "<|endoftext|>")
      facts.added.push_back({.id = id, .content = name, .special = true});
  const auto decoder = config.find("added_tokens_decoder");
  if (decoder == config.end() || !decoder->is_object()) return;
  facts.added.clear();
  for (const auto& [id, token] : decoder->items()) {
    if (!token.is_object() || id.empty() || id.size() > 7 ||
        id.find_first_not_of("0123456789") != id.npos)
      throw Error(fmt::format("{}: tokenizer_config.json has an added token '{}' that is none",
                              facts.path, id));
    const auto flag = [&, &the_token = token](const char* key) {
      return the_token.value(key, SortedJson(false)) == true;
    };
    facts.added.push_back({.id = std::stoi(id),
                           .content = token_named(SortedJson{{"t", token}}, "t"),
                           .special = flag("special"),
                           .normalized = flag("normalized"),
                           .lstrip = flag("lstrip"),
                           .rstrip = flag("rstrip")});
  }
}

}  // namespace

SortedJson read_json_file(const std::string& path) {
  const std::string text = read_file(path, kMostTokenizerBytes);
  if (depth_of(text) > kMostTokenizerDepth)
    throw Error(fmt::format("{}: its JSON is nested more than {} deep", path, kMostTokenizerDepth));
  try {
    return SortedJson::parse(text);
  } catch (const SortedJson::exception& error) {
    const auto* wrong = dynamic_cast<const SortedJson::parse_error*>(&error);
    throw Error(fmt::format("{} is not a tokenizer: it is not valid JSON{}", path,
                            wrong ? fmt::format(" at byte {}", wrong->byte) : ""));
  }
}

std::pair<std::string, std::string> parse_merge(const std::string& text, const std::string& where) {
  const size_t space = text.find(' ');
  if (space == 0 || space + 1 >= text.size() || text.find(' ', space + 1) != text.npos)
    throw Error(
        fmt::format("{} is '{}', which is not two tokens with a space between them", where, text));
  return {text.substr(0, space), text.substr(space + 1)};
}

std::vector<std::pair<std::string, int32_t>> parse_vocab(const SortedJson& vocab,
                                                         const std::string& where) {
  if (!vocab.is_object() || vocab.empty())
    throw Error(fmt::format("{} is not a vocabulary, an object of tokens and their ids", where));
  std::vector<std::pair<std::string, int32_t>> all;
  for (const auto& [name, id] : vocab.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<int32_t>::max())
      throw Error(
          fmt::format("{}: token '{}' has an id that is not a whole number from 0", where, name));
    all.emplace_back(name, id.get<int32_t>());
  }
  return all;
}

BpeFacts read_vocab_and_merges(const std::string& vocab, const std::string& merges) {
  BpeFacts facts;
  facts.path = vocab;
  facts.vocab = parse_vocab(read_json_file(vocab), vocab);
  const std::string text = read_file(merges, kMostTokenizerBytes);
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find('\n', begin), text.size());
    const size_t next = end + 1;
    if (end > begin && text[end - 1] == '\r') --end;
    const std::string line = text.substr(begin, end - begin);
    begin = next;
    ++line_number;
    const bool is_header = line.starts_with("#version");
    if (line.empty() || is_header) continue;
    facts.merges.push_back(parse_merge(line, fmt::format("{}: line {}", merges, line_number)));
  }
  const std::string folder = vocab.substr(0, vocab.rfind('/') + 1);
  const std::string beside = folder + "tokenizer_config.json";
  const SortedJson config = is_file(beside) ? read_json_file(beside) : SortedJson::object();
  std::string family = token_named(config, "tokenizer_class");
  if (family.ends_with("Fast")) family.resize(family.size() - 4);
  if (family != "" && family != "GPT2Tokenizer" && family != "Qwen2Tokenizer")
    throw Error(
        fmt::format("{}: vocab.json and merges.txt of a {} are not supported; save it as "
                    "tokenizer.json",
                    beside, family));
  facts.nfc = family == "Qwen2Tokenizer";
  facts.pattern = facts.nfc ? kQwenPattern : kGpt2Pattern;
  add_special(config, facts);
  return facts;
}

void add_folder_facts(const std::string& folder, BpeFacts& facts) {
  const std::string config_path = folder + "/tokenizer_config.json",
                    template_path = folder + "/chat_template.jinja";
  if (is_file(config_path)) {
    const SortedJson config = read_json_file(config_path);
    if (!config.is_object()) throw Error(config_path + " is not a JSON object");
    facts.bos_token = token_named(config, "bos_token");
    facts.eos_token = token_named(config, "eos_token");
    facts.chat_template = template_of(config);
  }
  if (is_file(template_path)) facts.chat_template = read_file(template_path, 1 << 20);
}

}  // namespace trireme::format
