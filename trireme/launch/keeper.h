#pragma once

#include <sys/types.h>

#include <functional>

#include "trireme/net/socket.h"

namespace trireme::launch {

/// A small process that kills the ranks' process groups if the launcher dies without a goodbye, for
/// example by kill -9. PDEATHSIG kills the ranks themselves, but not their children.
///
///     launcher ──pipe──> keeper        +pid: a group began    -pid: it is over    0: goodbye
///        └─ rank, rank ...             end of pipe: kill every group that is not over
///
/// It is not a child of the launcher, has its own session, and has no open file but the pipe, so
/// that a reader of the launcher's output sees its end.
class Keeper {
 public:
  /// `clean`: what it does after that, maybe several times; null: nothing. Throws Error if no
  /// process can be started.
  explicit Keeper(const std::function<void()>& clean = {});
  /// Says goodbye.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// Safe in a child between fork and exec. Each rank calls it there, so the keeper knows the rank
  /// before it runs.
  void began(pid_t group) const { tell(group); }
  /// Call it before the group's leader is reaped: after that the number may be reused.
  void over(pid_t group) const { tell(-group); }

 private:
  void tell(pid_t message) const;

  net::Fd pipe_;
};

}  // namespace trireme::launch
