#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/pipeline/generators.h"
#include "trireme/pipeline/price.h"
#include "trireme/pipeline/schedule.h"

namespace trireme::pipeline {

/// An action of a schedule that does not drain between steps. `age`: how many steps were begun
/// after the step that it belongs to; 0 is the newest.
struct AgedAction {
  Action action;
  int age = 0;
  bool operator==(const AgedAction&) const = default;
};
using AgedProgram = std::vector<AgedAction>;

/// Which version of the weights the stages use for a step.
enum class VersionSync : uint8_t {
  Stage,     ///< each the newest one that it has when the step begins there: weight stashing
  Vertical,  ///< all the same, that of the first stage: vertical sync
};

/// A schedule that goes on from step to step without draining the pipe. A step is one update of
/// every stage. Two ranks, two micro-batches a step, in the rows of rank 0 and 1 (3:0 is
/// micro-batch 0 of step 3):
///
///          prologue            period              period              epilogue
///     F1:0 F1:1 B1:0 | F2:0 B1:1 U1 F2:1 B2:0 | F3:0 B2:1 U2 F3:1 B3:0 | B3:1 U3
///     F1:0 B1:0 F1:1 B1:1 U1 | F2:0 B2:0 F2:1 B2:1 U2 | F3:0 B3:0 F3:1 B3:1 U3 |
///
/// W(t) are the weights after t updates. Step t computes its gradient at W(t - 1 - delay), at W(0)
/// while there are none older, and the update applies it to W(t - 1). So a stage keeps delay + 1
/// versions, from the one that the oldest unfinished step uses to the newest.
struct PeriodicSchedule {
  std::string name;
  int micros = 1;                   ///< of a step
  std::vector<int> placement;       ///< stage to rank
  std::vector<AgedProgram> period;  ///< of each rank: a step, where the pipe is full
  std::vector<AgedProgram> drain;   ///< of each rank: the rest of all steps in a full pipe
  std::vector<int> delays;          ///< of each stage, in updates

  int ranks() const { return static_cast<int>(period.size()); }
  int stages() const { return static_cast<int>(placement.size()); }
  int delay_of(int stage) const { return delays[static_cast<std::size_t>(stage)]; }
  /// The most steps that a rank leaves unfinished when it has run one.
  int depth() const;

  /// What a rank does in a step: the period, without the actions of steps that were never begun.
  /// `before`: how many steps were begun since the pipe was empty. The first ones are the prologue.
  AgedProgram step(int rank, int before) const;
  /// How a rank drains the pipe after `begun` steps since it was empty.
  AgedProgram epilogue(int rank, int begun) const;
};

/// The version that a step (counted from 1) uses on a stage with this delay.
constexpr int64_t version_of(int64_t step, int delay) {
  return step - 1 > delay ? step - 1 - delay : 0;
}

/// Makes pipedream or pipedream-2bw, of `shape.micros` micro-batches a step. Throws ScheduleError,
/// with the numbers, for another name or a shape that it cannot have.
PeriodicSchedule make_periodic(std::string_view name, Shape shape,
                               VersionSync sync = VersionSync::Stage);

/// So many steps from an empty pipe to an empty pipe, as one schedule: micro-batch j of step t
/// (from 0) is number t x micros + j.
Schedule unrolled(const PeriodicSchedule& schedule, int steps);

/// Proves, by running the steps of every rank: it cannot stall; every forward finds the version
/// that it needs; the backward of a micro-batch finds the same one, also after updates while the
/// pipe is drained. Throws ScheduleError.
void verify(const PeriodicSchedule& schedule);

/// The most versions of its weights that each rank keeps: the newest, and all from the oldest that
/// an unfinished or a later step uses.
std::vector<int> peak_versions(const PeriodicSchedule& schedule);

/// How long a step takes once the pipe is full: the time between two updates.
double price_period(const PeriodicSchedule& schedule, const std::vector<StageTimes>& times);

}  // namespace trireme::pipeline
