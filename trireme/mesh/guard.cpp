#include "trireme/mesh/guard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include <cstdio>
#include <new>
#include <string>

#include "trireme/core/error.h"
#include "trireme/core/terminal.h"

namespace trireme {

namespace {

/// The message of an error: libtorch's without its stack, and a plain one for a failed allocation.
std::string sentence_of(const std::exception& error) {
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error)) {
    const std::string whole = torch->what_without_backtrace();
    const auto allocator = whole.find("DefaultCPUAllocator: ");
    const std::string said = allocator == whole.npos ? whole : whole.substr(allocator + 21);
    return said.substr(0, said.find('\n'));
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
