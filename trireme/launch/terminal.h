#pragma once

#include <sys/types.h>

namespace trireme::launch {

/// Lends our terminal to a rank that is alone in its job, so that a debugger, a prompt or a full
/// screen works under the launcher. Ctrl-C and Ctrl-Z then reach the rank and not us.
///
/// Several ranks are not lent it: they lie in the background, where reading a terminal stops a
/// process, and get /dev/null instead.
class Terminal {
 public:
  /// Whether there is a terminal to lend: stdin is one, and we are in its foreground.
  static bool available();

  explicit Terminal(pid_t group);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// If the rank was stopped by Ctrl-Z: takes the terminal back, stops us too, so that the shell
  /// notices, and when we are continued lends it again and continues the rank.
  void follow_stop();

 private:
  void lend();
  void take_back();

  pid_t group_;
};

}  // namespace trireme::launch
