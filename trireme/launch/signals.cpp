#include "trireme/launch/signals.h"

#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "trireme/core/error.h"

namespace trireme::launch {

Signals::Signals() {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCHLD})
    sigaddset(&taken, signal);
  // nohup: a signal that is blocked would come though it is ignored.
  struct sigaction hang_up {};
  if (sigaction(SIGHUP, nullptr, &hang_up) == 0 && hang_up.sa_handler == SIG_IGN)
    sigdelset(&taken, SIGHUP);
  fd_ = net::Fd(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) throw Error(fmt::format("signalfd: {}", core::errno_text(errno)));
  sigprocmask(SIG_BLOCK, &taken, &mask_before_);

  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &pipe_before_);
  // Our parent may have ignored SIGCHLD; then children would leave no exit code.
  struct sigaction normal {};
  normal.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &normal, &child_before_);
}

Signals::~Signals() {
  restore();
}

int Signals::next() {
  signalfd_siginfo info;
  const ssize_t got = read(fd_.get(), &info, sizeof(info));
  return got == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

void Signals::restore() const {
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  sigaction(SIGCHLD, &child_before_, nullptr);
  sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

}  // namespace trireme::launch
