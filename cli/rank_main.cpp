// `trireme-rank`: the commands that need torch. `trireme` starts it, or becomes it under a
// launcher.
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "cli/rank_commands.h"
#include "trireme/core/error.h"
#include "trireme/mesh/guard.h"

namespace {

namespace cli = trireme::cli;

struct Command {
  const char* name;
  const char* typed;  ///< the command that the user typed, which error messages begin with
  int (*run)(const std::vector<std::string>& args);
};

constexpr Command kCommands[] = {{"bench-comm", "trireme bench", cli::bench_comm},
                                 {"bench-train", "trireme bench", cli::bench_train},
                                 {"bench-checkpoint", "trireme bench", cli::bench_checkpoint},
                                 {"train", "trireme train", cli::train},
                                 {"train-check", "trireme train", cli::train_check},
                                 {"mesh-check", "trireme", cli::mesh_check},
                                 {"verify", "trireme verify", cli::verify},
                                 {"eval", "trireme eval", cli::eval},
                                 {"generate", "trireme generate", cli::generate},
                                 {"data-make", "trireme data", cli::data_make},
                                 {"doctor", "trireme doctor", cli::doctor},
                                 {"doctor-ranks", "trireme doctor", cli::doctor_ranks},
                                 {"doctor-gpu-ranks", "trireme doctor", cli::doctor_gpu_ranks}};

int run(const std::vector<std::string>& args) {
  const std::string name = args.empty() ? "" : args.front();
  const auto command = std::ranges::find(kCommands, name, &Command::name);
  if (command == std::end(kCommands))
    throw trireme::ConfigError("trireme-rank is started by `trireme`; see `trireme --help`");
  program_invocation_short_name = const_cast<char*>(command->typed);
  return command->run({args.begin() + 1, args.end()});
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGXFSZ, SIG_IGN);  // `ulimit -f`: an error of write that names the file, and no death
  return trireme::guard([&] {
    try {
      const int code = run({argv + 1, argv + argc});
      // The output was closed, and the command has handled that.
      if (code == 128 + SIGPIPE || code == 128 + SIGHUP) return code;
      if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        throw trireme::Error("the output could not be written: is the disk full?");
      return code;
    } catch (const trireme::cli::HelpWanted& help) {
      std::fputs(help.text.c_str(), stdout);
      return 0;
    }
  });
}
