#pragma once

#include <string>
#include <string_view>

#include "trireme/net/socket.h"

namespace trireme::launch {

/// Where output is shown: stdout or stderr, never waited for.
///
/// Lines of many writers are kept whole. A line that is too long to be held arrives in parts; a
/// part by somebody else then begins on a line of its own. What the reader has not taken is queued,
/// and when the queue is full the ranks' pipes are left unread, so that they wait and not we.
class Sink {
 public:
  explicit Sink(int fd);

  /// Queues `text`, with `prefix` where it begins a line. `writer` tells the writers apart.
  void show(const void* writer, std::string_view prefix, std::string_view text);

  /// Ends the line of `writer`, if it is in the middle of one.
  void end_line(const void* writer) {
    if (open_line_ == writer) show(writer, "", "\n");
  }

  /// Queues a message of the launcher's own, on a line of its own.
  void say(std::string_view line) { show(this, "", std::string(line) + "\n"); }

  /// Writes what can be written now.
  void flush();

  bool full() const { return queue_.size() - begin_ > kFullBytes; }
  bool pending() const { return begin_ < queue_.size(); }
  /// Nobody reads any more (EPIPE and the like); what is shown goes nowhere.
  bool closed() const { return closed_; }
  /// To be polled for POLLOUT while pending.
  int fd() const { return own_ ? own_.get() : fd_; }

 private:
  static constexpr size_t kFullBytes = 256 << 10;

  int fd_;
  net::Fd own_;        ///< the same pipe or terminal, opened anew so that only we do not block
  size_t step_bytes_;  ///< most bytes that one write may have
  std::string queue_;
  size_t begin_ = 0;
  bool closed_ = false;
  const void* open_line_ = nullptr;  ///< whose line has not ended yet
};

}  // namespace trireme::launch
