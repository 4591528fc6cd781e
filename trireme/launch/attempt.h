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
  std::string who;  ///< "rank 3 (pid 8812 on a)", "worker 1 (pid 8812)"
  ExitStatus ending;
  std::vector<std::string> last_lines = {};
  bool was_shown = false;  ///< its last lines have been shown already
  std::string stopped =
      "";  ///< a rank that was stopped (SIGSTOP), for which the failing rank waited
  std::string remark = "";  ///< why it is given up, where that is not plain
};

/// How an attempt ended. Without a failure every rank returned 0.
struct Outcome {
  std::optional<Failure> failure;
  int interrupted_by = 0;  ///< Ctrl-C, which a rank that has the terminal gets and we do not
};

/// One attempt of all ranks of a unit: starts them together, notices how they end, ends them
/// together. The owner polls what it reads from, and says when signals come.
///
/// Ranks that ended stay zombies until all have ended: while its leader is not reaped, the number
/// of a process group is not reused, so killing the group cannot hit another process.
class Attempt {
 public:
  Attempt(const RunOptions& options, const Job& job, const Keeper& keeper, Console& console);
  /// Kills what is left of the ranks' process groups.
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  /// Throws StartError or Error if the ranks could not be started.
  void start(const Signals& signals);
  bool running() const;

  /// Readable when a rank has ended: then call `notice_endings`.
  int deaths_fd() const { return deaths_.get(); }
  void notice_endings();
  /// Those that can be read.
  std::vector<Output*> outputs() const;
  /// When `send_due` has a signal for the ranks.
  std::optional<net::Deadline> due() const { return stop_plan_.due(); }
  void send_due(net::Deadline now);

  /// Passes on a signal that asks the job to end. From then on a rank that fails does not end the
  /// others, which may still be saving.
  void interrupt(int signal);
  void signal_groups(int signal);
  /// If Ctrl-Z has stopped the rank that has the terminal, stops us, too.
  void follow_stop();

  /// All ranks have ended; ends what they left behind.
  Outcome end();

 private:
  struct Rank;

  void start_rank(Spawner& spawner, int local_rank);
  std::unique_ptr<Output> make_output(Rank& rank, int local_rank, bool is_err);
  bool is_bare(int local_rank) const;
  bool shown(int local_rank, bool is_err) const;
  std::string full_name(const Rank& rank) const;
  Failure failure() const;
  void fail(const Rank& rank);
  void end_groups();

  const RunOptions& options_;
  const Job& job_;
  const Keeper& keeper_;
  Console& console_;
  net::Fd deaths_;  ///< an epoll of all pidfds
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::optional<Terminal> terminal_;
  StopPlan stop_plan_;
  const Rank* failed_ = nullptr;
  const Rank* stopped_ = nullptr;  ///< a rank that was stopped when another failed
  bool was_interrupted_ = false;
  int interrupted_by_ = 0;
};

}  // namespace trireme::launch
