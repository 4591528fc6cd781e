#pragma once

#include <vector>

#include "trireme/pipeline/schedule.h"

namespace trireme::pipeline {

/// What a stage's acts take, in any unit of time.
struct StageTimes {
  double forward = 1, backward = 2, backward_input = 1, backward_weight = 1;
  double transfer = 0;  ///< of an activation to the next stage, or of a gradient to the one before
};

/// When an action runs.
struct Span {
  Action action;
  double begin = 0, end = 0;
};

struct Timeline {
  std::vector<std::vector<Span>> ranks;  ///< in program order

  double end() const;
  /// The time in which a rank computes.
  double busy(int rank) const;
  /// The part of all ranks' time in which nothing is computed.
  double bubble() const;
};

/// Plays the schedule as fast as its order allows; transfers take their time and hold nobody up but
/// who waits for them. `times`: one for all stages, or one of each. Throws ScheduleError as
/// `verify` does.
Timeline price(const Schedule& schedule, const std::vector<StageTimes>& times);

}  // namespace trireme::pipeline
