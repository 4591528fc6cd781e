#pragma once

#include <signal.h>

#include <string>

#include "trireme/net/socket.h"

namespace trireme::launch {

/// While this object exists, the signals that ask a job to end or to pause arrive through a file
/// descriptor, and writing to a closed stdout is an error instead of a SIGPIPE.
///
/// A signal that was ignored when we started (nohup, a shell's background job) stays ignored.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_.get(); }
  /// The next signal that arrived; 0 if there is none.
  int next();
  /// Restores the previous signal handling. Safe between fork and exec.
  void restore() const;

 private:
  net::Fd fd_;
  sigset_t mask_before_;
  struct sigaction pipe_before_;
  struct sigaction child_before_;
};

/// "SIGSEGV", or "signal 47" where there is no name.
std::string signal_name(int signal);

}  // namespace trireme::launch
