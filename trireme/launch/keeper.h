#pragma once

#include <sys/types.h>

#include "trireme/net/socket.h"

namespace trireme::launch {

/// A tiny process that ends the ranks' process groups when the launcher dies without saying so,
/// kill -9 included. PDEATHSIG ends the ranks themselves; their children have only the keeper.
///
///     launcher ──pipe──> keeper        +pid: a group began    -pid: it is over    0: goodbye
///        └─ rank, rank ...             end of pipe: kill every group that is not over
///
/// It is no child of the launcher, has a session of its own and holds no file but the pipe, so that
/// whoever reads the launcher's output sees its end.
class Keeper {
 public:
  /// Throws Error if no process can be started.
  Keeper();
  /// Says goodbye.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// Safe in a child between fork and exec: each rank announces itself there, so there is no moment
  /// in which it runs unknown.
  void began(pid_t group) const { tell(group); }
  /// To be said before the group's leader is reaped: from then on its number may be another's.
  void over(pid_t group) const { tell(-group); }

 private:
  void tell(pid_t message) const;

  net::Fd pipe_;
};

}  // namespace trireme::launch
