// `trireme-rank`: what needs torch. Started by `trireme`, or exec'ed under another launcher.
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "cli/rank_commands.h"
#include "trireme/core/error.h"
#include "trireme/mesh/guard.h"

namespace {

using Commands = std::map<std::string, std::function<int(const std::vector<std::string>&)>>;

int run(const std::vector<std::string>& args) {
  const Commands commands = {{"bench-comm", trireme::cli::bench_comm},
                             {"bench-train", trireme::cli::bench_train},
                             {"bench-checkpoint", trireme::cli::bench_checkpoint},
                             {"train", trireme::cli::train},
                             {"train-check", trireme::cli::train_check},
                             {"verify", trireme::cli::verify},
                             {"data-make", trireme::cli::data_make},
                             {"doctor", trireme::cli::doctor},
                             {"doctor-ranks", trireme::cli::doctor_ranks}};
  const auto command = args.empty() ? commands.end() : commands.find(args.front());
  if (command == commands.end())
    throw trireme::ConfigError("trireme-rank is started by `trireme`; see `trireme --help`");
  return command->second({args.begin() + 1, args.end()});
}

}  // namespace

int main(int argc, char** argv) {
  return trireme::guard([&] {
    try {
      const int code = run({argv + 1, argv + argc});
      if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        throw trireme::Error("what was printed could not be written: is the disk full?");
      return code;
    } catch (const trireme::cli::HelpWanted& help) {
      std::fputs(help.text.c_str(), stdout);
      return 0;
    }
  });
}
