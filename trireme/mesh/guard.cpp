#include "trireme/mesh/guard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include <cstdio>
#include <new>
#include <string>
#include <string_view>

#include "trireme/core/error.h"
#include "trireme/core/terminal.h"
#include "trireme/core/units.h"

namespace trireme {

namespace {

/// The size of the tensor that libtorch found no memory for, from its message; empty if that is not
/// what the message says. It counts bytes for the host and writes "11.50 GiB" for a GPU.
std::string refused_size(const std::string& message) {
  const auto after = [&](std::string_view words) {
    const auto found = message.find(words);
    return found == message.npos ? nullptr : message.c_str() + found + words.size();
  };
  long long bytes = 0;
  if (const char* asked = after("you tried to allocate ");
      asked != nullptr && std::sscanf(asked, "%lld bytes", &bytes) == 1)
    return core::format_bytes(bytes);
  double number = 0;
  char unit[8] = {};
  if (const char* asked = after("out of memory. Tried to allocate ");
      asked != nullptr && std::sscanf(asked, "%lf %7[A-Za-z]", &number, unit) == 2)
    return fmt::format("{} {} on the GPU", number, unit);
  return "";
}

/// The message of an error: libtorch's without its stack, and a plain one for a failed allocation.
std::string sentence_of(const std::exception& error) {
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error)) {
    const std::string whole = torch->what_without_backtrace();
    if (const std::string size = refused_size(whole); !size.empty())
      return fmt::format(
          "no memory for a tensor of {}; ask for less, or spread it over more ranks (`trireme "
          "train CONFIG --check` says what a rank takes)",
          size);
    return whole.substr(0, whole.find('\n'));
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return "no memory; ask for less, or raise the limit (ulimit -v, the cgroup)";
  return error.what();
}

}  // namespace

int report(const std::exception& error) {
  const std::string speaker = std::string(program_invocation_short_name) + ":";
  const std::string line =
      fmt::format("{}{} {}\n", core::line_start(STDERR_FILENO),
                  core::coloured(core::Colour::Red, speaker, STDERR_FILENO), sentence_of(error));
  std::fflush(stdout);
  // One write, so that the lines of several ranks do not mix.
  [[maybe_unused]] const auto wrote = ::write(STDERR_FILENO, line.data(), line.size());
  return dynamic_cast<const ConfigError*>(&error) != nullptr ? 2 : 1;
}

}  // namespace trireme
