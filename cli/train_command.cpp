#include <fmt/format.h>
#include <signal.h>

#include <chrono>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/rank_program.h"
#include "trireme/config/load.h"
#include "trireme/config/mesh.h"
#include "trireme/config/text.h"
#include "trireme/core/error.h"
#include "trireme/launch/run.h"

namespace trireme::cli {

namespace {

constexpr const char* kTrainPurpose = "Trains a model as a configuration file says.";
constexpr const char* kTrainExamples =
    "  trireme train configs/gpt-small.toml\n"
    "  trireme train configs/gpt-small.toml mesh.replica=4 optim.lr=3e-4 run.dir=runs/try\n"
    "  trireme train configs/gpt2-124m.toml --check     what it would take; runs nothing\n"
    "  trireme run -n 4 --max-restarts 3 trireme train configs/gpt-small.toml\n\n"
    "It starts its own ranks (the product of the mesh's degrees), or takes those of the launcher\n"
    "that it runs under. KEY=VALUE overrides a key; the last of several wins. It continues from "
    "the\n"
    "newest checkpoint in run.dir. Ctrl-C or SIGTERM saves a checkpoint and stops; twice, at "
    "once.\n\n"
    "Exit codes: 0 done, or stopped by Ctrl-C; 1 the run failed; 2 configuration; 143 SIGTERM.\n\n"
    "Keys and their defaults:\n";

}  // namespace

int train_ranks(std::vector<std::string> command, const std::vector<std::string>& args,
                const std::string& speaker, std::vector<int> answers) {
  if (args.empty()) throw ConfigError("no configuration was named; configs/ has some");
  const auto config = config::load(args[0], {args.begin() + 1, args.end()});
  command.insert(command.end(), args.begin(), args.end());
  if (under_launcher()) become_rank(command);
  // Whether sizes can be cut so, only the layers know: ask before anything is started.
  if (config.mesh.tensor > 1) {
    std::vector<std::string> question{"train-check"};
    question.insert(question.end(), args.begin(), args.end());
    if (const int code = ask_rank(question); code != 0) return code;
  }
  command.insert(command.begin(), rank_program());
  const bool threads = config.comm.backend == "local";
  return launch::run({.command = command,
                      .num_ranks = threads ? 1 : config::wanted_ranks(config.mesh),
                      .display = launch::Display::Bare,
                      .interrupt_grace = std::chrono::minutes(10),  // a large state takes its time
                      .speaker = speaker,
                      .answers = std::move(answers)});
}

int train_command(const std::vector<std::string>& args) {
  Arguments arguments("trireme train", kTrainPurpose);
  arguments.usage("CONFIG [KEY=VALUE]... [--check]");
  arguments.footer(kTrainExamples + config::list_keys());
  bool check = false;
  arguments.flag("--check", check, "validate, print the mesh and the memory it takes, run nothing");
  // Options may stand anywhere; everything else is the file and its overrides.
  std::vector<std::string> options, words;
  for (const std::string& arg : args) (arg.starts_with("-") ? options : words).push_back(arg);
  arguments.parse(options);
  if (!check) return train_ranks({"train"}, words, "trireme train", {128 + SIGTERM});
  if (words.empty()) throw ConfigError("no configuration was named; configs/ has some");
  config::load(words[0], {words.begin() + 1, words.end()});
  words.insert(words.begin(), "train-check");
  become_rank(words);
}

}  // namespace trireme::cli
