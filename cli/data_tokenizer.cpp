#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "cli/arguments.h"
#include "cli/data_text.h"
#include "cli/status_line.h"
#include "trireme/core/error.h"
#include "trireme/format/bpe/train.h"
#include "trireme/format/file.h"
#include "trireme/format/text/documents.h"

namespace trireme::cli {

namespace {

constexpr const char* kTokenizerPurpose =
    "Makes a byte-level BPE tokenizer from text and writes OUT/tokenizer.json, which Hugging "
    "Face's\n"
    "tokenizers read, too. The same documents give the same file.";

constexpr const char* kTokenizerExamples =
    "  trireme data train-tokenizer runs/tok /usr/share/common-licenses --vocab 2000\n"
    "  trireme data build data/licenses /usr/share/common-licenses --tokenizer runs/tok";

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) names.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

format::Family family_named(const std::string& name) {
  if (name == "gpt2") return format::Family::Gpt2;
  if (name == "llama3") return format::Family::Llama3;
  if (name == "qwen") return format::Family::Qwen;
  throw ConfigError(fmt::format("--family '{}': must be gpt2, llama3 or qwen", name));
}

}  // namespace

int train_tokenizer_command(const std::vector<std::string>& args) {
  int64_t vocab = 32'000;
  std::string family = "gpt2", special = "<|endoftext|>";
  bool force = false;
  Arguments arguments("trireme data train-tokenizer", kTokenizerPurpose);
  arguments.usage("OUT INPUT... [OPTIONS]");
  arguments.footer(kTokenizerExamples);
  arguments.count("--vocab", vocab,
                  "how many tokens, 256 bytes and special ones among them (32000)");
  arguments.value("--family", family,
                  "how text is split into words: gpt2 (the default), llama3 or qwen");
  arguments.value("--special", special, "special tokens, with commas between them (<|endoftext|>)");
  arguments.flag("--force", force, "replace OUT/tokenizer.json if it exists");
  arguments.words("--family", {"gpt2", "llama3", "qwen"});
  const auto words = arguments.parse_anywhere(args);
  if (words.size() < 2) throw ConfigError("use 'trireme data train-tokenizer OUT INPUT...'");
  if (vocab < 257 || vocab > 1'000'000)
    throw ConfigError(fmt::format("--vocab {}: must be 257 to 1000000", vocab));
  const std::string path = words[0] + "/tokenizer.json";
  if (!force && ::access(path.c_str(), F_OK) == 0)
    throw ConfigError(fmt::format(
        "{} is there already; name another folder, or add --force to replace it", path));
  StatusLine status;
  format::BpeTrainer trainer(family_named(family));
  for (const std::string& file :
       format::document_files(std::vector<std::string>(words.begin() + 1, words.end()))) {
    format::for_each_document(file, [&](std::string_view document) { trainer.add(document); });
    if (status.due()) status.show("read " + file);
  }
  const auto trained = trainer.train(vocab, names_in(special), [&](int64_t tokens) {
    if (status.due()) status.show(fmt::format("{} of {} tokens", tokens, vocab));
  });
  std::error_code ignored;  // if the folder cannot be made, writing reports it
  std::filesystem::create_directories(words[0], ignored);
  format::write_file(path + ".tmp", format::to_tokenizer_json(trained));
  std::filesystem::rename(path + ".tmp", path);
  fmt::print("{}: {} tokens\n", path, trained.vocab.size());
  return 0;
}

}  // namespace trireme::cli
