#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/launch/keeper.h"
#include "trireme/launch/signals.h"
#include "trireme/net/socket.h"

namespace trireme::launch {

/// The program cannot be started. The exit code is the shell's: 127 if it does not exist, 126 if it
/// cannot be executed.
class StartError : public Error {
 public:
  StartError(const std::string& program, int errno_value);
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// The file that `program` names: `program` itself if it has a slash, else the first executable on
/// PATH. Throws StartError.
std::string find_program(const std::string& program);

/// Files for a child's stdin, stdout and stderr; -1: the launcher's own.
struct Stdio {
  int in = -1;
  int out = -1;
  int err = -1;
};

struct Child {
  pid_t pid = 0;
  net::Fd pidfd;
};

/// Starts copies of one program. Each child leads its own process group, is known to the keeper
/// before it runs, and dies with the launcher.
///
///     Spawner spawner(command, keeper, signals);
///     for (...) children.push_back(spawner.start(environment, stdio));
///     spawner.finish();          // all of them run the program now, or StartError
class Spawner {
 public:
  /// Throws StartError if there is no such program.
  Spawner(const std::vector<std::string>& command, const Keeper& keeper, const Signals& signals);

  /// Throws Error if the system cannot start another process.
  Child start(const std::vector<std::string>& environment, const Stdio& stdio);

  /// Waits until every child has called exec. Throws StartError if the program could not be
  /// executed; the children that failed have exited.
  void finish();

 private:
  std::vector<std::string> command_;
  std::string file_;
  const Keeper& keeper_;
  const Signals& signals_;
  net::Fd errors_;  ///< children write the errno of a failed exec; a successful one closes it
  net::Fd errors_writer_;  ///< the children's end
};

}  // namespace trireme::launch
