#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/data_text.h"
#include "cli/data_views.h"
#include "cli/rank_program.h"
#include "trireme/core/error.h"

namespace trireme::cli {

namespace {

constexpr const char* kDataPurpose =
    "Data sets: files of tokens (raw uint16, llm.c's .bin, Megatron's .bin and .idx), MNIST's and\n"
    "CIFAR's files, folders of JPEG and PNG images, texts.\n\n"
    "  trireme data make OUT [OPTIONS]   writes a generated language whose entropy is known\n"
    "  trireme data info FILE            what is in a file or folder, on one screen\n"
    "  trireme data show N FILE          prints or draws sample N, counted from 0\n"
    "  trireme data build OUT INPUT...   cuts text into tokens (--help lists its options)\n"
    "  trireme data train-tokenizer OUT INPUT...   makes a tokenizer (--help lists its options)";

constexpr const char* kDataExamples =
    "  trireme data make data/train.bin --tokens 1M --vocab 256 --kind llmc\n"
    "  trireme data info data/train.bin\n"
    "  trireme data show 3 data/train.bin\n"
    "  trireme train configs/gpt-small.toml data.kind=tokens data.path=data/train.bin eval.every=0 "
    "run.dir=runs/tokens";

constexpr int64_t kMostTokens = 1'000'000'000;  // make holds them in memory

struct MakeOptions {
  std::string kind;
  int64_t tokens = 1 << 20;
  int vocab = 256, seed = 1;
  bool force = false;
};

/// The files that `make` writes.
std::vector<std::string> files_of(const MakeOptions& make, const std::string& out) {
  if (make.kind != "megatron") return {out};
  const bool has_suffix = out.ends_with(".bin") || out.ends_with(".idx");
  const std::string name = has_suffix ? out.substr(0, out.size() - 4) : out;
  return {name + ".bin", name + ".idx"};
}

void check_make(const MakeOptions& make, const std::string& out) {
  if (make.tokens < 2 || make.tokens > kMostTokens)
    throw ConfigError(fmt::format("--tokens {}: must be 2 to {}", make.tokens, kMostTokens));
  if (make.vocab < 2 || make.vocab > 65536)
    throw ConfigError(fmt::format("--vocab {}: must be 2 to 65536", make.vocab));
  const std::vector<std::string> kinds = {"raw", "llmc", "megatron"};
  if (std::ranges::find(kinds, make.kind) == kinds.end())
    throw ConfigError(fmt::format("--kind '{}': must be raw, llmc or megatron", make.kind));
  for (const std::string& file : files_of(make, out))
    if (!make.force && ::access(file.c_str(), F_OK) == 0)
      throw ConfigError(fmt::format(
          "{} is there already; name another file, or add --force to replace it", file));
}

/// Fills in where info and show look, and what they take it for.
void locate(DataPlace& place, const std::string& path, const std::string& kind) {
  place.path = path;
  if (kind.empty()) {
    place.kind = guess_kind(path);
    return;
  }
  std::string words;
  for (const auto& word : config::Words<config::DataKind>::all) {
    if (word.choice == config::DataKind::Markov) continue;
    place.kind = word.choice;
    if (word.text == kind) return;
    words += fmt::format("{}{}", words.empty() ? "" : ", ", word.text);
  }
  throw ConfigError(fmt::format("--kind '{}': must be one of {}", kind, words));
}

int64_t number_in(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    throw ConfigError(fmt::format("'{}' is not the number of a sample", text));
  return number;
}

}  // namespace

int data_command(const std::vector<std::string>& args) {
  const std::string action = args.empty() ? "" : args[0];
  if (action == "build") return data_build_command({args.begin() + 1, args.end()});
  if (action == "train-tokenizer") return train_tokenizer_command({args.begin() + 1, args.end()});
  MakeOptions make;
  DataPlace place;
  Arguments arguments("trireme data", kDataPurpose);
  arguments.usage(
      "make OUT [OPTIONS] | info FILE | show N FILE | build OUT INPUT... | train-tokenizer OUT "
      "INPUT...");
  arguments.footer(kDataExamples);
  arguments.actions({"make", "info", "show", "build", "train-tokenizer"});
  arguments.section("Options of make");
  arguments.count("--tokens", make.tokens,
                  "how many tokens (1048576); 64K and 1M are 64000 and 1000000");
  arguments.value("--vocab", make.vocab, "how many different tokens (256)");
  arguments.value("--seed", make.seed, "seed of the language and the text (1)");
  arguments.value("--kind", make.kind,
                  "raw (uint16, the default), llmc or megatron; of info and show: a word of "
                  "data.kind, if what lies there is not recognised");
  arguments.flag("--force", make.force, "replace OUT if it exists");
  arguments.section("Options of info and show");
  arguments.count("--seq", place.seq, "tokens in a sample (64)");
  arguments.value("--tokenizer", place.tokenizer,
                  "tokens as text, and text cut into tokens: tokenizer.json, its folder, or bytes");
  arguments.words("--kind", {"raw", "llmc", "megatron", "tokens", "idx", "cifar", "images"});
  const auto words = arguments.parse_anywhere(args);
  if (words.size() == 2 && words[0] == "info") {
    locate(place, words[1], make.kind);
    return data_info(place);
  }
  if (words.size() == 3 && words[0] == "show") {
    locate(place, words[2], make.kind);
    if (place.seq < 1) throw ConfigError(fmt::format("--seq {}: must be at least 1", place.seq));
    return data_show(place, number_in(words[1]));
  }
  if (words.size() != 2 || words[0] != "make")
    throw ConfigError(
        "use 'trireme data make OUT', 'trireme data info FILE' or 'trireme data show N FILE'");
  const std::string& out = words[1];
  if (make.kind.empty()) make.kind = "raw";
  check_make(make, out);
  std::error_code ignored;  // if the folder cannot be made, writing reports it
  std::filesystem::create_directories(std::filesystem::path(out).parent_path(), ignored);
  become_rank({"data-make", out, make.kind, std::to_string(make.tokens), std::to_string(make.vocab),
               std::to_string(make.seed)});
}

}  // namespace trireme::cli
