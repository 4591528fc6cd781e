#include "trireme/launch/spawn.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "trireme/core/env.h"

namespace trireme::launch {

namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> all;
  all.reserve(strings.size() + 1);
  for (const std::string& text : strings) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

/// 0 if `file` can be executed, else the errno.
int executable_error(const std::string& file) {
  struct stat info;
  if (stat(file.c_str(), &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return EISDIR;
  return access(file.c_str(), X_OK) == 0 ? 0 : errno;
}

/// A hint for a name without a slash, which is searched on PATH only, as in a shell.
std::string remedy(const std::string& program, int errno_value) {
  if (errno_value != ENOENT || program.empty() || program.find('/') != program.npos) return "";
  if (executable_error("./" + program) == 0)
    return fmt::format("; the one in this folder is ./{}", program);
  return "; it is not on PATH";
}

/// dup2 that also clears close-on-exec if both are the same descriptor.
bool put_at(int fd, int place) {
  if (fd < 0) return true;
  if (fd == place) return fcntl(fd, F_SETFD, 0) == 0;
  return dup2(fd, place) == place;
}

}  // namespace

StartError::StartError(const std::string& program, int errno_value)
    : Error(fmt::format("cannot start '{}': {}{}", program, core::errno_text(errno_value),
                        remedy(program, errno_value))),
      exit_code_(errno_value == ENOENT || errno_value == ENOTDIR ? 127 : 126) {}

std::string find_program(const std::string& program) {
  if (program.find('/') != program.npos) {
    if (const int error = executable_error(program)) throw StartError(program, error);
    return program;
  }
  const std::string path = core::env("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  int why_not = ENOENT;
  for (std::string_view rest = path; !program.empty();) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    const std::string file = fmt::format("{}/{}", folder.empty() ? "." : folder, program);
    const int error = executable_error(file);
    if (error == 0) return file;
    if (error == EACCES) why_not = EACCES;
    if (folder.size() == rest.size()) break;
    rest.remove_prefix(folder.size() + 1);
  }
  throw StartError(program, why_not);
}

Spawner::Spawner(const std::vector<std::string>& command, const Keeper& keeper,
                 const Signals& signals)
    : command_(command), file_(find_program(command.at(0))), keeper_(keeper), signals_(signals) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error(fmt::format("pipe: {}", core::errno_text(errno)));
  errors_ = net::Fd(ends[0]);
  errors_writer_ = net::Fd(ends[1]);
}

Child Spawner::start(const std::vector<std::string>& environment, const Stdio& stdio) {
  const std::vector<char*> argv = pointers(command_);
  const std::vector<char*> envp = pointers(environment);
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid < 0)
    throw Error(fmt::format("cannot start '{}': fork: {}", command_[0], core::errno_text(errno)));
  if (pid == 0) {
    // Only calls that are safe after fork. If the launcher died before PDEATHSIG was set, no signal
    // comes, so check.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(1);
    keeper_.began(getpid());
    if (put_at(stdio.in, 0) && put_at(stdio.out, 1) && put_at(stdio.err, 2)) {
      signals_.restore();
      execve(file_.c_str(), argv.data(), envp.data());
    }
    const int error = errno;
    if (write(errors_writer_.get(), &error, sizeof(error)) < 0) _exit(126);
    _exit(127);
  }
  setpgid(pid, pid);  // the child does the same; ours fails harmlessly after its exec
  Child child{pid, net::Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)))};
  if (!child.pidfd) {
    const int error = errno;
    kill(pid, SIGKILL);
    throw Error(fmt::format("cannot watch '{}': pidfd_open: {}{}", command_[0],
                            core::errno_text(error),
                            error == EMFILE ? "; raise the limit on open files (ulimit -n)" : ""));
  }
  return child;
}

void Spawner::finish() {
  errors_writer_.reset();
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(errors_.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(error)) throw StartError(command_[0], error);
}

}  // namespace trireme::launch
