// The program `trireme`. It links no torch and starts in a few milliseconds; what needs torch is
// trireme-rank, which lies beside it.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <map>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "trireme/core/error.h"

namespace {

constexpr const char* kHelp = R"(Trireme trains neural networks on many processes, from C++.

Usage: trireme COMMAND [OPTIONS]

  run      start N ranks of any program and watch them:  trireme run -n 4 ./my_program
  train    train a model, as a file says:                trireme train configs/gpt-small.toml
  verify   prove that a mesh trains as one rank does:    trireme verify CONFIG mesh.tensor=2
  bench    measure, one JSON object per line:            trireme bench comm --ranks 2
  data     make and look at files of tokens:             trireme data info data/train.bin
  ckpt     look into checkpoints, compare, rewrite:      trireme ckpt verify runs/gpt
  schedule draw and check a pipeline schedule:           trireme schedule 1f1b --ranks 4 --micros 8
  doctor   say what this machine has, and try it:        trireme doctor

  trireme COMMAND --help   the options of a command
  trireme --version

Exit codes: 0 done, 1 failed, 2 usage, 3 verify found a difference or damage, 128+n killed by signal n; 'run'
passes on the code of the first rank that failed.
)";

using Command = int (*)(const std::vector<std::string>&);

const std::map<std::string, Command> kCommands = {
    {"run", trireme::cli::run_command},       {"train", trireme::cli::train_command},
    {"verify", trireme::cli::verify_command}, {"bench", trireme::cli::bench_command},
    {"data", trireme::cli::data_command},     {"ckpt", trireme::cli::ckpt_command},
    {"doctor", trireme::cli::doctor_command}, {"schedule", trireme::cli::schedule_command},
};

int usage_error(const std::string& speaker, const std::string& sentence) {
  fmt::print(stderr, "{}: {}\n", speaker, sentence);
  return 2;
}

int run_named(const std::string& name, const std::vector<std::string>& args) {
  const auto command = kCommands.find(name);
  if (command == kCommands.end())
    return usage_error("trireme", fmt::format("unknown {} '{}' ('trireme --help' lists them)",
                                              name[0] == '-' ? "option" : "command", name));
  try {
    const int code = command->second(args);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      throw trireme::Error("what was printed could not be written: is the disk full?");
    return code;
  } catch (const trireme::cli::HelpWanted& help) {
    fmt::print("{}", help.text);
    return 0;
  } catch (const trireme::ConfigError& error) {
    return usage_error("trireme " + name, error.what());
  } catch (const std::exception& error) {
    fmt::print(stderr, "trireme {}: {}\n", name, error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.empty()) {
    fmt::print(stderr, "{}", kHelp);
    return 2;
  }
  if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    fmt::print("{}", kHelp);
    return 0;
  }
  if (args[0] == "--version" || args[0] == "version") {
    fmt::print("trireme {}\n", TRIREME_VERSION);
    return 0;
  }
  return run_named(args[0], {args.begin() + 1, args.end()});
}
