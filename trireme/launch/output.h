#pragma once

#include <string>
#include <string_view>

#include "trireme/launch/sink.h"
#include "trireme/launch/tail.h"
#include "trireme/net/socket.h"

namespace trireme::launch {

/// Where the lines of one stream of one rank go. Each may be absent.
struct Destinations {
  Sink* sink = nullptr;
  std::string prefix;
  std::string log_file;
  Tail* tail = nullptr;
};

/// One output stream of one rank: a pipe that is cut into lines.
///
/// A line is passed on when it is whole, at 64 KiB, or when the pipe ends.
class Output {
 public:
  /// Throws Error if the log file cannot be written.
  explicit Output(Destinations destinations);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  /// The end that the rank writes into; the caller closes it once the rank runs.
  net::Fd take_writer() { return std::move(writer_); }

  /// Whether people see it as it comes.
  bool is_shown() const { return to_.sink != nullptr; }
  /// To be polled for POLLIN; -1 when the stream is over, or when it has to wait for its sink.
  int poll_fd() const;
  /// Passes on what is in the pipe, at most 64 KiB. True if there may be more.
  bool read_some();
  /// Passes on all that is left and ends the stream.
  void finish();

 private:
  void pass_on(std::string_view text);
  void end();

  Destinations to_;
  net::Fd reader_;
  net::Fd writer_;
  net::Fd log_;
  std::string line_;  ///< what has come of the current line
};

}  // namespace trireme::launch
