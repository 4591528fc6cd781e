#pragma once

#include <deque>
#include <string>
#include <string_view>

namespace trireme::launch {

/// The last lines of an output, for the report of a failure: at most 20 lines, of each at most the
/// first 500 bytes.
class Tail {
 public:
  /// Adds text. An incomplete last line continues with the next call.
  void add(std::string_view text);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  static constexpr size_t kLines = 20;
  static constexpr size_t kLineBytes = 500;

  std::deque<std::string> lines_;
  bool line_open_ = false;
};

}  // namespace trireme::launch
