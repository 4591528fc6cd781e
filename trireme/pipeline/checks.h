#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "trireme/pipeline/step_table.h"

namespace trireme::pipeline {

/// Messages count steps from 1, as columns of a file; a pair counts as two.
inline int counted(int step) {
  return step + 1;
}

/// "rank 1 does 1F0 at step 3".
inline std::string who_does(int rank, int step, const Action& action) {
  return fmt::format("rank {} does {} at step {}", rank, to_text(action), counted(step));
}

/// Throws ScheduleError: the schedule's name, then the sentence.
template <class... Args>
[[noreturn]] void refuse(const Schedule& schedule, fmt::format_string<Args...> sentence,
                         Args&&... args) {
  throw ScheduleError(fmt::format("schedule '{}': {}", schedule.name,
                                  fmt::format(sentence, std::forward<Args>(args)...)));
}

/// Checks what needs no simulation: every action is valid, on the right rank and done once; no work
/// is missing, and every transfer has its other end. Throws ScheduleError.
StepTable check_actions(const Schedule& schedule);

/// Checks the acts that concern a whole stage, for each rank by itself: a stage computes only while
/// it is unsharded, its gradients are reduced once, after the last backward, and where the schedule
/// has updates no gradient is left without one. Throws ScheduleError.
void check_whole_stage_acts(const Schedule& schedule);

}  // namespace trireme::pipeline
