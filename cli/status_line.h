#pragma once

#include <chrono>
#include <string>

namespace trireme::cli {

/// Tells on stderr how far a command is: a line that is drawn over on a terminal, else a line every
/// five seconds, so that nothing is silent for long and a quick command says nothing.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// Whether `show` would print now: the text may cost something.
  bool due() const;
  void show(const std::string& text);
  /// Seconds since it was made.
  double seconds() const;

 private:
  const bool terminal_;
  const std::chrono::steady_clock::time_point began_;
  std::chrono::steady_clock::time_point next_;
  bool drawn_ = false;
};

}  // namespace trireme::cli
