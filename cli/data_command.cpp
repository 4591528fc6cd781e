#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/data_text.h"
#include "cli/rank_program.h"
#include "trireme/core/error.h"
#include "trireme/format/tokens.h"

namespace trireme::cli {

namespace {

constexpr const char* kDataPurpose =
    "Files of tokens: raw uint16, llm.c's .bin, Megatron's .bin and .idx.\n\n"
    "  trireme data make OUT [OPTIONS]   writes a generated language whose entropy is known\n"
    "  trireme data info FILE            prints its kind, the number of tokens, the largest token\n"
    "  trireme data build OUT INPUT...   cuts text into tokens (--help lists its options)\n"
    "  trireme data train-tokenizer OUT INPUT...   makes a tokenizer (--help lists its options)";

constexpr const char* kDataExamples =
    "  trireme data make data/train.bin --tokens 1M --vocab 256 --kind llmc\n"
    "  trireme data info data/train.bin\n"
    "  trireme train configs/gpt-small.toml data.kind=tokens data.path=data/train.bin eval.every=0 "
    "run.dir=runs/tokens";

constexpr int64_t kMostTokens = 1'000'000'000;  // make holds them in memory

struct MakeOptions {
  std::string kind = "raw";
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

int info(const std::string& path) {
  const format::TokenFile file(path);
  fmt::print("{}: {}, {} tokens, the largest is {}\n", file.path(), format::to_string(file.kind()),
             file.size(), file.largest());
  return 0;
}

}  // namespace

int data_command(const std::vector<std::string>& args) {
  const std::string action = args.empty() ? "" : args[0];
  if (action == "build") return data_build_command({args.begin() + 1, args.end()});
  if (action == "train-tokenizer") return train_tokenizer_command({args.begin() + 1, args.end()});
  MakeOptions make;
  Arguments arguments("trireme data", kDataPurpose);
  arguments.usage(
      "make OUT [OPTIONS] | info FILE | build OUT INPUT... | train-tokenizer OUT INPUT...");
  arguments.footer(kDataExamples);
  arguments.actions({"make", "info", "build", "train-tokenizer"});
  arguments.section("Options of make");
  arguments.count("--tokens", make.tokens,
                  "how many tokens (1048576); 64K and 1M are 64000 and 1000000");
  arguments.value("--vocab", make.vocab, "how many different tokens (256)");
  arguments.value("--seed", make.seed, "seed of the language and the text (1)");
  arguments.value("--kind", make.kind, "raw (uint16, the default), llmc or megatron");
  arguments.flag("--force", make.force, "replace OUT if it exists");
  arguments.words("--kind", {"raw", "llmc", "megatron"});
  const auto words = arguments.parse_anywhere(args);
  if (words.size() == 2 && words[0] == "info") {
    if (args.size() > 2) throw ConfigError("info takes a file and no options");
    return info(words[1]);
  }
  if (words.size() != 2 || words[0] != "make")
    throw ConfigError("use 'trireme data make OUT' or 'trireme data info FILE'");
  const std::string& out = words[1];
  check_make(make, out);
  std::error_code ignored;  // if the folder cannot be made, writing reports it
  std::filesystem::create_directories(std::filesystem::path(out).parent_path(), ignored);
  become_rank({"data-make", out, make.kind, std::to_string(make.tokens), std::to_string(make.vocab),
               std::to_string(make.seed)});
}

}  // namespace trireme::cli
