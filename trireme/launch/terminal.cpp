#include "trireme/launch/terminal.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace trireme::launch {

bool Terminal::available() {
  return isatty(STDIN_FILENO) == 1 && tcgetpgrp(STDIN_FILENO) == getpgrp();
}

Terminal::Terminal(pid_t group) : group_(group) {
  lend();
}

Terminal::~Terminal() {
  take_back();
}

void Terminal::lend() {
  if (available()) tcsetpgrp(STDIN_FILENO, group_);
  kill(-group_, SIGCONT);  // it may have been stopped because it read too early
}

void Terminal::take_back() {
  if (tcgetpgrp(STDIN_FILENO) != group_) return;
  // Taking the terminal from the background would raise SIGTTOU.
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTTOU);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  tcsetpgrp(STDIN_FILENO, getpgrp());
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

void Terminal::follow_stop() {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(group_), &info, WSTOPPED | WNOHANG) != 0) return;
  if (info.si_pid != group_) return;
  take_back();
  kill(0, SIGSTOP);
  lend();
}

}  // namespace trireme::launch
