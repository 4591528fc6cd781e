#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::core {

/// Says things on stderr, and who says them: "12:00:01.123 warning [rank 3 tensor] ...".
///
/// Quiet by default: warnings and errors only. TRIREME_LOG=trace|debug|info|warning|error|off
/// says otherwise; any other word is a ConfigError. There is no global one: whoever has a rank and
/// a group makes one.
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
