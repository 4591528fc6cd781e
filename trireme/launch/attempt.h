#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/launch/console.h"
#include "trireme/launch/environment.h"
#include "trireme/launch/keeper.h"
#include "trireme/launch/options.h"
#include "trireme/launch/output.h"
#include "trireme/launch/signals.h"
#include "trireme/launch/spawn.h"
#include "trireme/launch/stop_plan.h"
#include "trireme/launch/terminal.h"

namespace trireme::launch {

/// How a rank ended.
struct ExitStatus {
  int code = 0;    ///< passed to exit()
  int signal = 0;  ///< that killed it; 0: none

  bool good() const { return code == 0 && signal == 0; }
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
};

/// The first rank that failed, and the last lines that it wrote.
struct Failure {
  int rank = 0;
  pid_t pid = 0;
  ExitStatus ending;
  std::vector<std::string> last_lines;
  bool was_shown = false;  ///< its last lines have been shown already
  int stopped_rank = -1;   ///< a rank that was stopped (SIGSTOP), for which the failing rank waited
  pid_t stopped_pid = 0;
};

/// How an attempt ended. Without a failure every rank returned 0.
struct Outcome {
  std::optional<Failure> failure;
  int interrupted_by = 0;  ///< the first signal that the launcher received; 0: none
};

/// One attempt of all ranks of this host: starts them together, watches them, ends them together.
///
///     poll: pidfd of each rank ── a rank ended          pipes ── lines to show
///           signalfd           ── a signal for us       time  ── the next signal of StopPlan
///
/// Ranks that ended stay zombies until all have ended: while its leader is not reaped, the number
/// of a process group is not reused, so killing the group cannot hit another process.
class Attempt {
 public:
  Attempt(const RunOptions& options, const Job& job, const Keeper& keeper, Signals& signals,
          Console& console);
  /// Kills what is left of the ranks' process groups.
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  /// Throws StartError or Error if the ranks could not be started.
  Outcome run();

 private:
  struct Rank;

  void start_ranks();
  void start_rank(Spawner& spawner, int local_rank);
  std::unique_ptr<Output> make_output(Rank& rank, int local_rank, bool is_err);
  bool shown(int local_rank) const;
  Failure failure() const;

  bool running() const;
  void wait();
  void handle_signals();
  void interrupt(int signal);
  void pause();
  void notice_endings();
  void fail(const Rank& rank);
  void signal_groups(int signal);
  void end_groups();

  const RunOptions& options_;
  const Job& job_;
  const Keeper& keeper_;
  Signals& signals_;
  Console& console_;
  net::Fd deaths_;  ///< an epoll of all pidfds
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::optional<Terminal> terminal_;
  StopPlan stop_plan_;
  const Rank* failed_ = nullptr;
  const Rank* stopped_ = nullptr;  ///< a rank that was stopped when another failed
  int interrupted_by_ = 0;
};

}  // namespace trireme::launch
