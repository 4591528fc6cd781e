#pragma once

#include <chrono>
#include <string>

namespace trireme::cli {

/// Progress of a command on stderr: on a terminal one line that is redrawn, else a line every five
/// seconds. Quick commands print nothing.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// Whether `show` would print now; spares making the text if not.
  bool due() const;
  void show(const std::string& text);
  /// Seconds since construction.
  double seconds() const;

 private:
  const bool terminal_;
  const std::chrono::steady_clock::time_point began_;
  std::chrono::steady_clock::time_point next_;
  bool drawn_ = false;
};

}  // namespace trireme::cli
