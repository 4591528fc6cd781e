#include "trireme/launch/report.h"

#include "trireme/launch/machine.h"

namespace trireme::launch {

std::string sentence(const Failure& failure) {
  const std::string how = failure.ending.signal != 0
                              ? "was killed by " + signal_name(failure.ending.signal)
                              : fmt::format("exited with code {}", failure.ending.code);
  return fmt::format("rank {} (pid {} on {}) {}", failure.rank, failure.pid, host_name(), how);
}

std::string report(const Failure& failure, std::string_view speaker) {
  std::string text = fmt::format("{}: {}", speaker, sentence(failure));
  if (failure.last_lines.empty()) return text;
  text += "; its last lines:";
  for (const std::string& line : failure.last_lines) text += "\n  | " + line;
  return text;
}

}  // namespace trireme::launch
