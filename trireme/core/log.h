#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace trireme::core {

/// Says things on stderr, and who says them: "12:00:01.123 warning [rank 3 tensor] ...".
///
/// Quiet by default: warnings and errors only. TRIREME_LOG=trace|debug|info|warning|error|off
/// says otherwise. There is no global one: whoever has a rank and a group makes one.
class Log {
 public:
  Log(int rank, std::string_view group);
  ~Log();

  void debug(std::string_view text) const;
  void info(std::string_view text) const;
  void warning(std::string_view text) const;
  void error(std::string_view text) const;

 private:
  struct Sink;  // spdlog's headers need another fmt than torch's, so they stay out of here
  std::unique_ptr<Sink> sink_;
};

}  // namespace trireme::core
