#include "trireme/launch/report.h"

#include <unistd.h>

#include "trireme/core/terminal.h"

namespace trireme::launch {

std::string sentence(const Failure& failure) {
  const std::string how = failure.ending.signal != 0
                              ? "was killed by " + signal_name(failure.ending.signal)
                              : fmt::format("exited with code {}", failure.ending.code);
  const std::string what = fmt::format("{} {}", failure.who, how);
  if (failure.stopped.empty()) return what;
  return fmt::format("{} is stopped, by SIGSTOP or a debugger; {}", failure.stopped, what);
}

std::string report(const Failure& failure, std::string_view speaker) {
  std::string text =
      fmt::format("{}{} {}", core::line_start(STDERR_FILENO),
                  core::coloured(core::Colour::Red, std::string(speaker) + ":", STDERR_FILENO),
                  sentence(failure));
  if (!failure.remark.empty()) text += "; " + failure.remark;
  if (failure.last_lines.empty()) return text;
  text += "; its last lines:";
  for (const std::string& line : failure.last_lines) text += "\n  | " + line;
  return text;
}

}  // namespace trireme::launch
