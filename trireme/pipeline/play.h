#pragma once

#include <algorithm>
#include <vector>

#include "trireme/pipeline/step_table.h"

namespace trireme::pipeline {

/// An action or an overlapped pair, which a rank begins together: `count` actions from step `step`
/// of its program.
struct JoinedActions {
  int rank = 0, step = 0, count = 1;
};

inline int num_joined(const Action& first) {
  return first.join == Join::WithNext ? 2 : 1;
}

/// Simulates all ranks, each in the order of its program, until none can continue. An action runs
/// when its dependencies are done; `take(joined)` is called for each action or pair, in an order in
/// which they could have run. Sends never block, so what deadlocks here deadlocks on any transport.
///
///     rank 0   F0 F1 B0 .      next[0] = 3
///     rank 1   F0 | B0 F1 .    next[1] = 1: the steps left of the bar are done
///
/// Returns the first step that each rank has not done; the size of its program, if it finished.
template <class Take>
std::vector<int> play(const Schedule& schedule, const StepTable& steps, Take take) {
  std::vector<int> next(schedule.programs.size(), 0);
  const auto is_done = [&](const Action& action) {
    const int step = steps.step(action);
    return step != kNoStep && step < next[static_cast<std::size_t>(schedule.rank_of(action.stage))];
  };
  const auto is_ready = [&](const Action& action) {
    const Dependencies wanted = dependencies(action, schedule, steps);
    return std::all_of(wanted.begin(), wanted.end(), is_done);
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      const Program& program = schedule.programs[static_cast<std::size_t>(rank)];
      int& at = next[static_cast<std::size_t>(rank)];
      while (at < static_cast<int>(program.size())) {
        const Action* first = program.data() + at;
        const int count = num_joined(*first);
        if (!std::all_of(first, first + count, is_ready)) break;
        take(JoinedActions{rank, at, count});
        at += count;
        moved = true;
      }
    }
  }
  return next;
}

}  // namespace trireme::pipeline
