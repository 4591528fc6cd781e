#pragma once

#include <vector>

#include "trireme/pipeline/schedule.h"

namespace trireme::pipeline {

/// How long each act of a stage takes, in any unit of time.
struct StageTimes {
  double forward = 1, backward = 2, backward_input = 1, backward_weight = 1;
  double transfer = 0;  ///< of an activation to the next stage, or of a gradient to the one before
  double update = 0;    ///< of the optimizer's step, where the schedule has updates
};

/// When an action runs.
struct Span {
  Action action;
  double begin = 0, end = 0;
};

struct Timeline {
  std::vector<std::vector<Span>> ranks;  ///< in program order

  double end() const;
  /// How long the rank computes.
  double busy(int rank) const;
  /// The fraction of all ranks' time in which they do not compute.
  double bubble() const;
};

/// Simulates the schedule: each action starts as early as its program and its dependencies allow. A
/// transfer delays only the actions that wait for it. `times`: one for all stages, or one for each.
/// Throws ScheduleError as `verify` does.
Timeline price(const Schedule& schedule, const std::vector<StageTimes>& times);

}  // namespace trireme::pipeline
