#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "trireme/net/socket.h"

namespace trireme::test {

/// What a terminal of so many columns shows after these bytes: a line each, as far as our programs
/// use it (carriage return, newline, erasing to the end of the line; colours are left out).
std::vector<std::string> screen_of(const std::string& bytes, int columns);

struct TerminalOptions {
  int columns = 100;
  std::vector<std::pair<std::string, std::string>> environment{};  ///< added to ours
  std::chrono::milliseconds deadline{60'000};
};

/// A command on a terminal of its own, as a person runs it.
class Terminal {
 public:
  explicit Terminal(std::vector<std::string> argv, TerminalOptions options = {});
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) const;
  /// Reads until the text has come; false at the deadline or the command's end.
  bool wait_for(const std::string& text);
  /// Waits for its end; its exit code, or 128 + the signal.
  int finish();

  /// Everything that was written.
  const std::string& bytes() const { return bytes_; }
  std::vector<std::string> screen() const { return screen_of(bytes_, columns_); }

 private:
  bool read_some();

  int columns_;
  std::chrono::steady_clock::time_point deadline_;
  pid_t pid_ = -1;
  net::Fd master_;
  std::string bytes_;
};

}  // namespace trireme::test
