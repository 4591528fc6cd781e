#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::core {

/// Logs to stderr, with time, level, rank and group: "12:00:01.123 warning [rank 3 tensor] ...".
///
/// By default it logs warnings and errors only. TRIREME_LOG=trace|debug|info|warning|error|off
/// changes that; any other word is a ConfigError. There is no global log: code that knows its rank
/// and group makes one.
class Log {
 public:
  Log(int rank, std::string_view group);

  void debug(std::string_view text) const { say(Level::Debug, text); }
  void info(std::string_view text) const { say(Level::Info, text); }
  void warning(std::string_view text) const { say(Level::Warning, text); }
  void error(std::string_view text) const { say(Level::Error, text); }

 private:
  enum class Level : uint8_t { Trace, Debug, Info, Warning, Error, Off };
  void say(Level level, std::string_view text) const;

  std::string who_;
  Level least_ = Level::Warning;
};

}  // namespace trireme::core
