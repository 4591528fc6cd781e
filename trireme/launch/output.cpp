#include "trireme/launch/output.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "trireme/core/error.h"

namespace trireme::launch {

namespace {

constexpr int kPieceBytes = 64 << 10;

/// False if the file takes no more (a full disk).
bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    text.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

}  // namespace

Output::Output(Destinations destinations) : to_(std::move(destinations)) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw Error(
        fmt::format("no pipe for the output of a rank: {} (ulimit -n is the limit; a rank "
                    "takes 3)",
                    core::errno_text(errno)));
  reader_ = net::Fd(ends[0]);
  writer_ = net::Fd(ends[1]);
  fcntl(reader_.get(), F_SETFL, O_NONBLOCK);  // our end alone; the rank's end blocks as usual
  if (to_.log_file.empty()) return;
  log_ = net::Fd(open(to_.log_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!log_)
    throw Error(fmt::format("cannot write '{}': {}", to_.log_file, core::errno_text(errno)));
}

int Output::poll_fd() const {
  return to_.sink != nullptr && to_.sink->full() ? -1 : reader_.get();
}

bool Output::read_some() {
  if (!reader_) return false;
  static std::array<char, kPieceBytes> buffer;
  const ssize_t got = read(reader_.get(), buffer.data(), buffer.size());
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && errno == EAGAIN) return false;
  if (got <= 0) {
    end();
    return false;
  }
  std::string_view text(buffer.data(), static_cast<size_t>(got));
  if (const size_t last = text.rfind('\n'); last != text.npos) {
    line_ += text.substr(0, last + 1);
    pass_on(line_);
    line_.clear();
    text.remove_prefix(last + 1);
  }
  line_ += text;
  if (line_.size() >= size_t{kPieceBytes}) {
    pass_on(line_);
    line_.clear();
  }
  return true;
}

void Output::finish() {
  // Only what is in the pipe now: a process that left the rank's process group may still write.
  int left_bytes = 0;
  if (reader_) ioctl(reader_.get(), FIONREAD, &left_bytes);
  for (; left_bytes > 0 && read_some(); left_bytes -= kPieceBytes) {
  }
  end();
}

void Output::end() {
  if (!reader_) return;
  pass_on(line_);
  if (to_.sink != nullptr && !to_.prefix.empty()) to_.sink->end_line(this);
  line_.clear();
  reader_.reset();
  log_.reset();
}

void Output::pass_on(std::string_view text) {
  if (to_.tail != nullptr) to_.tail->add(text);
  if (log_ && !write_all(log_.get(), text)) {
    const std::string why = core::errno_text(errno);
    log_.reset();
    const std::string sentence =
        fmt::format("trireme: cannot write '{}' any more: {}", to_.log_file, why);
    if (to_.sink != nullptr)
      to_.sink->say(sentence);
    else
      std::fprintf(stderr, "%s\n", sentence.c_str());
  }
  if (to_.sink == nullptr) return;
  to_.sink->show(this, to_.prefix, text);
  to_.sink->flush();
  // Nobody reads this output any more: close the pipe, so that the rank sees what it would see
  // without a launcher.
  if (to_.sink->closed() && !log_) reader_.reset();
}

}  // namespace trireme::launch
