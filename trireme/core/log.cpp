#include "trireme/core/log.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/terminal.h"

namespace trireme::core {

namespace {

// In the order of Log::Level.
constexpr std::array<std::string_view, 6> kLevels = {"trace",   "debug", "info",
                                                     "warning", "error", "off"};

std::string time_of_day() {
  const auto now = std::chrono::system_clock::now();
  const time_t seconds = std::chrono::system_clock::to_time_t(now);
  tm local{};
  ::localtime_r(&seconds, &local);
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  return fmt::format("{:02}:{:02}:{:02}.{:03}", local.tm_hour, local.tm_min, local.tm_sec,
                     milliseconds);
}

}  // namespace

Log::Log(int rank, std::string_view group) : who_(fmt::format("rank {} {}", rank, group)) {
  const auto wanted = env("TRIREME_LOG");
  if (!wanted) return;
  const auto found = std::find(kLevels.begin(), kLevels.end(), *wanted);
  if (found == kLevels.end())
    throw ConfigError(
        fmt::format("TRIREME_LOG='{}' must be trace, debug, info, warning, error or off", *wanted));
  least_ = static_cast<Level>(found - kLevels.begin());
}

void Log::say(Level level, std::string_view text) const {
  if (level < least_) return;
  std::string name(kLevels[static_cast<std::size_t>(level)]);
  if (level >= Level::Warning)
    name = coloured(level == Level::Warning ? Colour::Yellow : Colour::Red, name, STDERR_FILENO);
  const std::string line =
      fmt::format("{}{} {} [{}] {}\n", line_start(STDERR_FILENO), time_of_day(), name, who_, text);
  std::fwrite(line.data(), 1, line.size(),
              stderr);  // one write, so that lines of threads do not mix
}

}  // namespace trireme::core
