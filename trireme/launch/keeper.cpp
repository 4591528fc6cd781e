#include "trireme/launch/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "trireme/core/error.h"

namespace trireme::launch {

namespace {

constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 5'000'000};
constexpr int kMostPauses = 20;  ///< a zombie that nobody reaps counts as left

/// Removes what the job had on the disk, and again until nobody is left who could write it anew.
void clean_beside(const std::vector<pid_t>& groups, const std::function<void()>& clean) {
  const auto is_left = [](pid_t group) { return kill(-group, 0) == 0; };
  for (int i = 0; i < kMostPauses; ++i) {
    clean();
    if (std::ranges::none_of(groups, is_left)) return;
    nanosleep(&kPause, nullptr);
  }
}

/// Returns when the launcher has said goodbye, or after killing every group that it left behind.
void keep(int pipe, const std::function<void()>& clean) {
  std::vector<pid_t> groups;
  for (;;) {
    pid_t message = 0;
    const ssize_t got = read(pipe, &message, sizeof(message));
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof(message)) break;
    if (message == 0) return;
    if (message > 0)
      groups.push_back(message);
    else
      std::erase(groups, -message);
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  if (clean) clean_beside(groups, clean);
}

[[noreturn]] void become_keeper(int pipe, const std::function<void()>& clean) {
  prctl(PR_SET_NAME, "trireme-keeper");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGPIPE, SIGUSR1, SIGUSR2})
    ::signal(signal, SIG_IGN);
  if (dup2(pipe, 0) == 0) {
    close_range(1, ~0U, 0);
    if (chdir("/") != 0) _exit(1);
    keep(0, clean);
  }
  _exit(0);
}

}  // namespace

Keeper::Keeper(const std::function<void()>& clean) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw Error(fmt::format("cannot start the keeper: {}", core::errno_text(errno)));
  const net::Fd read_end(ends[0]);
  pipe_ = net::Fd(ends[1]);

  const pid_t middle = fork();
  if (middle < 0) throw Error(fmt::format("cannot start the keeper: {}", core::errno_text(errno)));
  if (middle == 0) {
    setsid();
    const pid_t keeper = fork();
    if (keeper == 0) become_keeper(read_end.get(), clean);
    _exit(keeper > 0 ? 0 : 1);
  }
  int status = 0;
  while (waitpid(middle, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) throw Error("cannot start the keeper: no process can be started");
}

Keeper::~Keeper() {
  tell(0);
}

void Keeper::tell(pid_t message) const {
  // A pipe takes four bytes completely or not at all. If the keeper was killed, nobody reads them.
  while (write(pipe_.get(), &message, sizeof(message)) < 0 && errno == EINTR) {
  }
}

}  // namespace trireme::launch
