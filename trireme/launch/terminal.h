#pragma once

#include <sys/types.h>

namespace trireme::launch {

/// Makes a rank that is alone in its job the foreground process of our terminal, so that debuggers,
/// prompts and full-screen programs work under the launcher. Ctrl-C and Ctrl-Z then reach the rank
/// and not us.
///
/// Several ranks do not get it: they run in the background, where reading the terminal would stop
/// them, and read /dev/null instead.
class Terminal {
 public:
  /// Whether stdin is a terminal and we are in its foreground.
  static bool available();

  explicit Terminal(pid_t group);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// If Ctrl-Z stopped the rank: takes the terminal back and stops us too, so that the shell
  /// notices. When we are continued, gives the terminal to the rank again and continues it.
  void follow_stop();

 private:
  void lend();
  void take_back();

  pid_t group_;
};

}  // namespace trireme::launch
