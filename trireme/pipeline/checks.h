#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "trireme/pipeline/places.h"

namespace trireme::pipeline {

/// Sentences count steps from 1, as the columns of a file are counted; a pair is two.
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

/// What can be seen without playing: every action exists, on the right rank and once; all work is
/// there, and every transfer has its other end. Throws ScheduleError.
Places check_actions(const Schedule& schedule);

/// The acts that concern a stage as a whole, each rank by itself: a stage computes only while it is
/// unsharded, its gradients are reduced once and after the last of them, and none is left without
/// an update where there are updates. Throws ScheduleError.
void check_whole_stage_acts(const Schedule& schedule);

}  // namespace trireme::pipeline
