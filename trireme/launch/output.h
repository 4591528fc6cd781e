#pragma once

#include <string>
#include <string_view>

#include "trireme/launch/sink.h"
#include "trireme/launch/tail.h"
#include "trireme/net/socket.h"

namespace trireme::launch {

/// Where the lines of one stream of one rank go. Each member may be empty.
struct Destinations {
  Sink* sink = nullptr;
  std::string prefix;
  std::string log_file;
  Tail* tail = nullptr;
};

/// One output stream of one rank: a pipe that is cut into lines.
///
/// A line is passed on when it is complete, when it reaches 64 KiB, or when the pipe ends.
class Output {
 public:
  /// Throws Error if the log file cannot be written.
  explicit Output(Destinations destinations);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  /// The end that the rank writes into; the caller closes it once the rank runs.
  net::Fd take_writer() { return std::move(writer_); }

  /// Whether the output is shown while the rank runs.
  bool is_shown() const { return to_.sink != nullptr; }
  /// Poll this for POLLIN; -1 when the stream has ended or has to wait for its sink.
  int poll_fd() const;
  /// Passes on what is in the pipe, at most 64 KiB. Returns true if there may be more.
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
  std::string line_;  ///< the beginning of the current line
};

}  // namespace trireme::launch
