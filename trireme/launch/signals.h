#pragma once

#include <signal.h>

#include <string>

#include "trireme/net/socket.h"

namespace trireme::launch {

/// While this lives, the signals that ask a job to end or to pause arrive as reads of a file
/// descriptor, and a closed stdout is an error of write() rather than a death.
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
  /// Puts things back as they were. Safe between fork and exec.
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
