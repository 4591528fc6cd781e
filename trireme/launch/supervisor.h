#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/launch/attempt.h"
#include "trireme/launch/port.h"

namespace trireme::launch {

/// Runs the units of a job to its end. A job of ranks is one unit.
///
///     one poll():  pidfds ── a rank ended          pipes ── lines to show
///                  signalfd ── a signal for us     time  ── the next signal of a StopPlan
///
///     start ──> runs ── all 0 ──> done ── all that work are done ──> manager and servers end, too
///       ^        │ failed
///       └─ again ┴─ for good ──> all end; the exit code is that of this unit
class Supervisor {
 public:
  /// A master port of 0 stands for a free one in each attempt.
  Supervisor(const RunOptions& options, std::vector<Job> units, const Keeper& keeper,
             Signals& signals, Console& console);

  /// Returns the exit code of the job. Throws StartError or Error if a unit cannot be started.
  int run();

 private:
  struct Unit {
    Job job;
    bool picks_port = false;
    std::optional<ReservedPort> port = {};
    net::Deadline began = {};
    int quick_failures = 0;                 ///< in a row
    std::unique_ptr<Attempt> attempt = {};  ///< null: it is over

    /// Whether the job is done when this unit is; manager and servers only serve those.
    bool works() const { return !job.role || job.role->kind == UnitRole::Kind::Worker; }
    bool is_manager() const { return job.role && job.role->kind == UnitRole::Kind::Manager; }
  };
  /// Closing: all work is done, and servers and manager are told to end. Stopping: all are ended,
  /// whatever they do. How a unit ends counts only before.
  enum class Stage { Running, Closing, Stopping };

  void start(Unit& unit);
  void wait();
  std::optional<net::Deadline> due() const;

  void handle_signals();
  void interrupt(int signal);
  void pause();
  void signal_all(int signal);

  void on_over(Unit& unit);
  void close_if_done();
  bool may_try_again(const Unit& unit, Failure& failure) const;
  void restart(Unit& unit, const Failure& failure);
  void give_up(Failure failure);
  bool ended_in_order() const;
  int conclude();

  const RunOptions& options_;
  const Keeper& keeper_;
  Signals& signals_;
  Console& console_;
  std::deque<Unit> units_;
  StopPlan stop_plan_;  ///< for all units
  Stage stage_ = Stage::Running;
  std::optional<Failure> failure_;  ///< of the unit that was given up
  int interrupted_by_ = 0;          ///< the first signal that asked the job to end; 0: none
};

}  // namespace trireme::launch
