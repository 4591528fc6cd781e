#include "trireme/verify/scratch_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "trireme/core/env.h"
#include "trireme/format/folder.h"

namespace trireme::verify {

namespace {

/// Only calls that are safe after fork: other threads may hold locks.
[[noreturn]] void remove_at_the_end(int pipe, const char* path) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGPIPE})
    ::signal(signal, SIG_IGN);
  if (::dup2(pipe, 0) == 0) {
    ::close_range(1, ~0U, 0);
    char none;
    while (::read(0, &none, 1) < 0 && errno == EINTR) {
    }
    ::execl("/bin/rm", "rm", "-rf", "--", path, static_cast<char*>(nullptr));
  }
  ::_exit(1);
}

}  // namespace

ScratchFolder::ScratchFolder() {
  std::string made = core::env("TMPDIR").value_or("/tmp") + "/trireme-verify-XXXXXX";
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  const net::Fd read_end(ends[0]);
  pipe_ = net::Fd(ends[1]);
  if (::mkdtemp(made.data()) == nullptr) return;
  path_ = made;
  // Neither in our process group, which the launcher ends, nor our child, which would be a zombie.
  const pid_t middle = ::fork();
  if (middle == 0) {
    ::setsid();
    const pid_t remover = ::fork();
    if (remover == 0) remove_at_the_end(read_end.get(), path_.c_str());
    ::_exit(0);
  }
  while (middle > 0 && ::waitpid(middle, nullptr, 0) < 0 && errno == EINTR) {
  }
}

ScratchFolder::~ScratchFolder() {
  try {
    if (!path_.empty()) format::remove_all(path_);
  } catch (const std::exception&) {  // some file is left in a folder of temporary ones
  }
}

}  // namespace trireme::verify
