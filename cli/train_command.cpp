#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <span>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/config_text.h"
#include "cli/rank_program.h"
#include "trireme/config/load.h"
#include "trireme/config/mesh.h"
#include "trireme/config/text.h"
#include "trireme/config/validate.h"
#include "trireme/core/error.h"
#include "trireme/exchange/start.h"
#include "trireme/format/candidates.h"
#include "trireme/launch/run.h"

namespace trireme::cli {

namespace {

constexpr const char* kTrainPurpose = "Trains a model from a configuration file.";
constexpr const char* kTrainExamples =
    "  trireme train configs/gpt-small.toml\n"
    "  trireme train configs/gpt-small.toml mesh.replica=4 optim.lr=3e-4 run.dir=runs/try\n"
    "  trireme train configs/gpt2-124m.toml --check     what it needs; runs nothing\n"
    "  trireme run -n 2 --max-restarts 3 trireme train configs/gpt-small.toml\n\n"
    "It starts its own ranks (the product of the mesh's degrees), or takes those of the launcher\n"
    "that it runs under. KEY=VALUE overrides a key; the last of several wins, and one that "
    "changes\n"
    "nothing is an error. It continues from the newest checkpoint in run.dir. Ctrl-C, SIGTERM, a "
    "closed\n"
    "terminal (SIGHUP) or a closed stdout (| head) saves a checkpoint and stops; a second Ctrl-C "
    "or\n"
    "SIGTERM stops at once, as does SIGQUIT.\n\n"
    "Exit codes: 0 done, or saved and stopped by Ctrl-C; 1 the run failed; 2 configuration;\n"
    "143 SIGTERM, 129 SIGHUP, 141 closed stdout, all after saving; 130 Ctrl-C before the first "
    "step,\n"
    "when there is nothing to save.\n\n"
    "Keys and their defaults:\n";

/// Under another launcher each rank reads the file by itself, so a pipe would not last.
void refuse_pipe(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    throw ConfigError(
        fmt::format("{} is not a regular file, and under a launcher every rank reads it: write the "
                    "configuration to a file",
                    path));
}

/// Loads the file named first, with the overrides that follow it. It is read once, here; the ranks
/// that are started get its text.
config::Config load_named(const std::vector<std::string>& args) {
  if (args.empty()) throw ConfigError("no configuration was named; configs/ has some");
  if (under_launcher()) refuse_pipe(args[0]);
  const std::string text = config::read_text(args[0]);
  config::Config config =
      config::parse(text, args[0], std::span(args).subspan(1), exchange::complete_model);
  config::refuse_unbuilt(config);
  hand_over(text);
  return config;
}

}  // namespace

/// How many processes our launcher starts.
static int num_processes(const config::Config& config) {
  return config.comm.backend == config::Backend::Local ? 1 : config::wanted_ranks(config.mesh);
}

namespace {

/// The checkpoint that the run continues from, named for all its processes: one that is started
/// again later must not choose a newer one, nor servers a damaged one each for itself.
void name_checkpoint(const config::Config& config, std::vector<std::string>& command) {
  if (config.checkpoint.resume.from != config::Resume::From::Newest) return;
  const std::string newest = format::newest_whole(
      config.run.dir + "/checkpoints",
      [](const std::string& sentence) { fmt::print(stderr, "trireme train: {}\n", sentence); });
  command.push_back("checkpoint.resume=" + (newest.empty() ? "never" : newest));
}

/// Starts the manager, the servers and the workers of a run whose weights live on servers.
int train_on_servers(const config::Config& config, std::vector<std::string> command,
                     launch::RunOptions options) {
  if (under_launcher())
    throw ConfigError(fmt::format(
        "sync.kind = \"{}\" needs a manager and servers, which `trireme train` starts itself: run "
        "it without another launcher",
        to_string(config.sync.kind)));
  name_checkpoint(config, command);
  config::MeshKeys worker = config.mesh;
  worker.replica = 1;
  options.command = std::move(command);
  options.num_ranks = config::wanted_ranks(worker);
  options.final_codes = {1, 2};  // an error of the run, unlike a death, would come again
  options.roles = launch::Roles{
      .servers = static_cast<int>(config.sync.servers),
      .workers = static_cast<int>(std::max<int64_t>(1, config.mesh.replica)),
      .manager = config.sync.manager.empty() ? config.run.dir + "/ps" : config.sync.manager};
  return launch::run(options);
}

}  // namespace

int train_ranks(std::vector<std::string> command, const std::vector<std::string>& args,
                const std::string& speaker, std::vector<int> answers) {
  const auto config = load_named(args);
  if (command.at(0) != "eval") config::refuse_evaluation_without_data(config);
  command.insert(command.end(), args.begin(), args.end());
  const bool on_servers = config.sync.on_servers() && command.at(0) == "train";
  if (config.sync.on_servers() && command.at(0) == "bench-train")
    throw ConfigError(fmt::format(
        "sync.kind = \"{}\": bench times ranks without servers; leave it out, or see bench/ps",
        to_string(config.sync.kind)));
  if (under_launcher() && !on_servers) become_rank(command);
  // Only the layers know whether their sizes can be cut, and the schedule of a pipeline may be a
  // file: ask before any rank starts, so that one process refuses and not each rank.
  if (config.mesh.tensor > 1 || config.mesh.pipe > 1 || on_servers) {
    std::vector<std::string> question{"mesh-check", speaker};
    question.insert(question.end(), args.begin(), args.end());
    if (const int code = ask_rank(question); code != 0) return code;
  }
  command.insert(command.begin(), rank_program());
  launch::RunOptions options{
      .command = command,
      .num_ranks = num_processes(config),
      .display = launch::Display::Bare,
      .interrupt_grace = std::chrono::minutes(10),  // saving a large state takes time
      .speaker = speaker,
      .answers = std::move(answers)};
  if (on_servers) return train_on_servers(config, std::move(command), std::move(options));
  return launch::run(options);
}

int train_command(const std::vector<std::string>& args) {
  Arguments arguments("trireme train", kTrainPurpose);
  arguments.usage("CONFIG [KEY=VALUE]... [--check | --dry-run]");
  arguments.footer(kTrainExamples + config::list_keys());
  bool check = false;
  arguments.flag("--check,--dry-run", check,
                 "validate, print the mesh and the memory it needs, run nothing; needs no data");
  auto words = arguments.parse_anywhere(args);  // the file and its overrides
  if (!check)
    return train_ranks({"train"}, words, "trireme train",
                       {128 + SIGTERM, 128 + SIGPIPE, 128 + SIGHUP});
  const auto config = load_named(words);
  config::refuse_evaluation_without_data(config);
  words.insert(words.begin(), "train-check");
  if (!under_launcher())
    launch::check_options({.command = words, .num_ranks = num_processes(config)});
  become_rank(words);
}

}  // namespace trireme::cli
