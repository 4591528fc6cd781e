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
#include "trireme/launch/stopping.h"
#include "trireme/launch/terminal.h"

namespace trireme::launch {

/// How a rank ended.
struct Ending {
  int code = 0;    ///< of exit()
  int signal = 0;  ///< that killed it; 0: none

  bool good() const { return code == 0 && signal == 0; }
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
};

/// The first rank that failed, and what it said last.
struct Failure {
  int rank = 0;
  pid_t pid = 0;
  Ending ending;
  std::vector<std::string> last_lines;
  bool was_shown = false;  ///< what it said last was shown when it said it
  int stopped_rank = -1;   ///< one that was there, but stopped: what the failing rank waited for
  pid_t stopped_pid = 0;
};

/// How an attempt ended. Without a failure every rank returned 0.
struct Outcome {
  std::optional<Failure> failure;
  int interrupted_by = 0;  ///< the first signal that we were sent; 0: none
};

/// One life of all ranks of this host: started together, watched, ended together.
///
///     poll: pidfd of each rank ── a rank ended          pipes ── lines to show
///           signalfd           ── we were told          time  ── the next step of Stopping
///
/// Ranks that ended stay zombies until all have: as long as its leader is not reaped, the number of
/// a process group is nobody else's, and killing it hits who it should.
class Attempt {
 public:
  Attempt(const RunOptions& options, const Job& job, const Keeper& keeper, Signals& signals,
          Console& console);
  /// Nothing of the ranks' process groups is left afterwards.
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
  Stopping stopping_;
  const Rank* failed_ = nullptr;
  const Rank* stopped_ = nullptr;  ///< one that was stopped when another failed
  int interrupted_by_ = 0;
};

}  // namespace trireme::launch
