#pragma once

#include <string>
#include <string_view>

#include "trireme/net/socket.h"

namespace trireme::launch {

/// Shows output on stdout or stderr without ever blocking.
///
/// Lines of several writers do not mix. A line that is too long to hold arrives in parts; the
/// output of another writer then begins on a new line. What the reader has not taken is queued.
/// When the queue is full we stop reading the ranks' pipes, so that the ranks wait and not the
/// launcher.
class Sink {
 public:
  explicit Sink(int fd);

  /// Queues `text`, with `prefix` at the start of each line. `writer` identifies the writer.
  void show(const void* writer, std::string_view prefix, std::string_view text);

  /// Ends the line of `writer`, if it is in the middle of one.
  void end_line(const void* writer) {
    if (open_line_ == writer) show(writer, "", "\n");
  }

  /// Queues a message of the launcher on its own line.
  void say(std::string_view line) { show(this, "", std::string(line) + "\n"); }

  /// Writes what can be written now.
  void flush();

  bool full() const { return queue_.size() - begin_ > kFullBytes; }
  bool pending() const { return begin_ < queue_.size(); }
  /// Nobody reads any more (EPIPE and the like); further output is dropped.
  bool closed() const { return closed_; }
  /// Poll this for POLLOUT while pending().
  int fd() const { return own_ ? own_.get() : fd_; }

 private:
  static constexpr size_t kFullBytes = 256 << 10;

  int fd_;
  net::Fd own_;        ///< the same pipe or terminal, opened anew to be non-blocking
  size_t step_bytes_;  ///< the most bytes of one write
  std::string queue_;
  size_t begin_ = 0;
  bool closed_ = false;
  const void* open_line_ = nullptr;  ///< whose line has not ended yet
};

}  // namespace trireme::launch
