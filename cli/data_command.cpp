#include <fmt/format.h>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/rank_program.h"
#include "trireme/core/error.h"
#include "trireme/format/tokens.h"

namespace trireme::cli {

namespace {

constexpr const char* kDataPurpose =
    "Files of tokens: raw uint16, llm.c's .bin, Megatron's .bin and .idx.\n\n"
    "  trireme data make OUT [OPTIONS]   writes a generated language whose entropy is known\n"
    "  trireme data info FILE            what kind it is, how many tokens, the largest";

constexpr const char* kDataExamples =
    "  trireme data make data/train.bin --tokens 1000000 --vocab 256 --kind llmc\n"
    "  trireme data info data/train.bin\n"
    "  trireme train configs/gpt-small.toml \\\n"
    "      data.kind=tokens data.path=data/train.bin eval.every=0\n\n"
    "Options of make: --tokens N (1048576), --vocab N (256), --seed N (1), --kind raw, llmc or\n"
    "megatron (raw).";

int info(const std::string& path) {
  const format::TokenFile file(path);
  fmt::print("{}: {}, {} tokens, the largest is {}\n", file.path(), format::to_string(file.kind()),
             file.size(), file.largest());
  return 0;
}

}  // namespace

int data_command(const std::vector<std::string>& args) {
  Arguments arguments("trireme data", kDataPurpose);
  arguments.usage("make OUT [OPTIONS] | info FILE");
  arguments.footer(kDataExamples);
  const std::string what = args.empty() ? "" : args[0];
  if (what == "make" && args.size() >= 2 && !args[1].starts_with("-")) {
    std::vector<std::string> command{"data-make", "--out", args[1]};
    command.insert(command.end(), args.begin() + 2, args.end());
    become_rank(command);
  }
  if (what == "info" && args.size() == 2 && !args[1].starts_with("-")) return info(args[1]);
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h") arguments.parse({"--help"});
  }
  throw ConfigError("say 'trireme data make OUT' or 'trireme data info FILE'");
}

}  // namespace trireme::cli
