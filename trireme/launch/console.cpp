#include "trireme/launch/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

namespace trireme::launch {

namespace {

bool same_file(int a, int b) {
  struct stat of_a, of_b;
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

}  // namespace

Console::Console() : out_(STDOUT_FILENO) {
  if (!same_file(STDOUT_FILENO, STDERR_FILENO)) err_ = std::make_unique<Sink>(STDERR_FILENO);
}

void Console::flush() {
  out().flush();
  err().flush();
}

void Console::drain(Signals& signals) {
  for (;;) {
    flush();
    std::vector<pollfd> waited{{signals.fd(), POLLIN, 0}};
    for (Sink* sink : {&out(), &err()})
      if (sink->pending()) waited.push_back({sink->fd(), POLLOUT, 0});
    if (waited.size() == 1) return;
    poll(waited.data(), waited.size(), -1);
    while (const int signal = signals.next())
      if (signal != SIGCHLD) return;
  }
}

void open_standard_files() {
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) return;
}

}  // namespace trireme::launch
