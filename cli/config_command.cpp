#include <fmt/format.h>
#include <unistd.h>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "trireme/config/starting_point.h"
#include "trireme/core/error.h"
#include "trireme/format/file.h"

namespace trireme::cli {

namespace {

constexpr const char* kConfigPurpose =
    "Writes a commented configuration to begin with, for 'trireme train'.";

constexpr const char* kConfigExamples =
    "  trireme config new gpt                       to the terminal\n"
    "  trireme config new mlp --out mine.toml       to a file, which must not exist yet\n"
    "  trireme train mine.toml --check\n";

}  // namespace

int config_command(const std::vector<std::string>& args) {
  Arguments arguments("trireme config", kConfigPurpose);
  arguments.usage("new MODEL [--out FILE.toml]");
  arguments.footer(kConfigExamples);
  std::string out;
  arguments.value("--out", out, "write to this file");
  arguments.actions({"new"});
  const auto words = arguments.parse_anywhere(args);
  if (words.empty() || words[0] != "new" || words.size() > 2)
    throw ConfigError("use 'trireme config new MODEL'");
  const std::string text = config::starting_point(words.size() == 2 ? words[1] : "");
  if (out.empty()) {
    fmt::print("{}", text);
    return 0;
  }
  if (::access(out.c_str(), F_OK) == 0)
    throw ConfigError(fmt::format("{} is there already; name another file, or remove it", out));
  format::write_file(out, text);
  return 0;
}

}  // namespace trireme::cli
