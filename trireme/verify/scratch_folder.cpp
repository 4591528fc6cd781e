#include "trireme/verify/scratch_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <random>

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
    ssize_t got;
    while ((got = ::read(0, &none, 1)) < 0 && errno == EINTR) {
    }
    if (got == 0) ::execl("/bin/rm", "rm", "-rf", "--", path, static_cast<char*>(nullptr));
  }
  ::_exit(1);
}

}  // namespace

ScratchFolder::ScratchFolder() {
  std::random_device random;
  const std::string name = fmt::format("{}/trireme-verify-{:08x}{:08x}",
                                       core::env("TMPDIR").value_or("/tmp"), random(), random());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  const net::Fd read_end(ends[0]);
  pipe_ = net::Fd(ends[1]);
  // Who removes it is there before it is: no kill finds it alone. Neither in our process group,
  // which the launcher ends, nor our child, which would be a zombie.
  const pid_t middle = ::fork();
  if (middle == 0) {
    ::setsid();
    const pid_t remover = ::fork();
    if (remover == 0) remove_at_the_end(read_end.get(), name.c_str());
    ::_exit(0);
  }
  while (middle > 0 && ::waitpid(middle, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (::mkdir(name.c_str(), 0700) == 0)
    path_ = name;
  else
    (void)!::write(pipe_.get(), "-", 1);
}

ScratchFolder::~ScratchFolder() {
  try {
    if (!path_.empty()) format::remove_all(path_);
  } catch (const std::exception&) {  // some file is left in a folder of temporary ones
  }
}

}  // namespace trireme::verify
