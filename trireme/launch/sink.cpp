#include "trireme/launch/sink.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace trireme::launch {

Sink::Sink(int fd) : fd_(fd), step_bytes_(SSIZE_MAX) {
  struct stat info;
  if (fstat(fd, &info) != 0 || S_ISREG(info.st_mode)) return;
  // O_NONBLOCK belongs to the open file, which we share with the shell and others, so open it anew.
  // If that fails (sockets), write no more at a time than poll() guarantees to take.
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  own_ = net::Fd(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!own_) step_bytes_ = PIPE_BUF;
}

void Sink::show(const void* writer, std::string_view prefix, std::string_view text) {
  if (closed_) return;
  if (open_line_ != nullptr && open_line_ != writer) {
    queue_ += '\n';
    open_line_ = nullptr;
  }
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    const std::string_view line = text.substr(0, newline == text.npos ? newline : newline + 1);
    if (open_line_ == nullptr) queue_ += prefix;
    queue_ += line;
    open_line_ = newline == text.npos ? writer : nullptr;
    text.remove_prefix(line.size());
  }
}

void Sink::flush() {
  while (pending() && !closed_) {
    const size_t size = std::min(queue_.size() - begin_, step_bytes_);
    if (!own_) {
      pollfd ready{fd_, POLLOUT, 0};
      if (poll(&ready, 1, 0) == 0) return;
    }
    const ssize_t wrote = write(fd(), queue_.data() + begin_, size);
    if (wrote >= 0) {
      begin_ += static_cast<size_t>(wrote);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      closed_ = true;
    }
  }
  if (closed_ || begin_ == queue_.size()) {
    queue_.clear();
    begin_ = 0;
  } else if (begin_ > kFullBytes) {
    queue_.erase(0, begin_);
    begin_ = 0;
  }
}

}  // namespace trireme::launch
