// The program `trireme`. It does not link torch and starts in a few milliseconds; trireme-rank, in
// the same folder, does what needs torch.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "trireme/core/error.h"
#include "trireme/core/terminal.h"

namespace {

namespace cli = trireme::cli;

std::string help() {
  std::string text =
      "Trireme trains neural networks on many processes, from C++.\n\n"
      "Usage: trireme COMMAND [OPTIONS]\n\n";
  for (const cli::Command& one : cli::commands())
    text += fmt::format("  {:<11}{:<46}{}\n", one.name, one.purpose, one.example);
  return text +
         "\n  trireme help COMMAND     the options of a command; also: trireme COMMAND --help\n"
         "  trireme --version\n\n"
         "Exit codes: 0 done, 1 failed, 2 usage, 3 verify found a difference or damage, 128+n "
         "killed "
         "by\nsignal n; 'run' passes on the code of the first rank that failed.\n";
}

int failed(int code, const std::string& speaker, const std::string& sentence) {
  using trireme::core::Colour;
  fmt::print(stderr, "{} {}\n", trireme::core::coloured(Colour::Red, speaker + ":", STDERR_FILENO),
             sentence);
  return code;
}

int run_named(const std::string& name, const std::vector<std::string>& args) {
  const auto command = std::ranges::find(cli::commands(), name, &cli::Command::name);
  if (command == cli::commands().end())
    return failed(2, "trireme",
                  fmt::format("unknown {} '{}' ('trireme --help' lists them)",
                              name[0] == '-' ? "option" : "command", name));
  try {
    const int code = command->run(args);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      throw trireme::Error("the output could not be written: is the disk full?");
    return code;
  } catch (const cli::HelpWanted& wanted) {
    fmt::print("{}", wanted.text);
    return 0;
  } catch (const trireme::ConfigError& error) {
    return failed(2, "trireme " + name, error.what());
  } catch (const std::exception& error) {
    return failed(1, "trireme " + name, error.what());
  }
}

/// `trireme help`, `trireme help bench checkpoint`.
int run_help(std::vector<std::string> args) {
  if (args.empty()) {
    fmt::print("{}", help());
    return 0;
  }
  const std::string name = args.front();
  args.erase(args.begin());
  args.push_back("--help");
  return run_named(name, args);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.empty()) {
    fmt::print(stderr, "{}", help());
    return 2;
  }
  const std::vector<std::string> rest(args.begin() + 1, args.end());
  if (args[0] == "help") return run_help(rest);
  if (args[0] == "--help" || args[0] == "-h") return run_help({});
  if (args[0] == "--version" || args[0] == "version") {
    fmt::print("trireme {}\n", TRIREME_VERSION);
    return 0;
  }
  return run_named(args[0], rest);
}
