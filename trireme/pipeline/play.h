#pragma once

#include <algorithm>
#include <vector>

#include "trireme/pipeline/places.h"

namespace trireme::pipeline {

/// An action, or an overlapped pair: what a rank begins together. Steps are places in its program.
struct Turn {
  int rank = 0, step = 0, count = 1;
};

inline int turn_size(const Action& first) {
  return first.join == Join::WithNext ? 2 : 1;
}

/// Plays all ranks together, each in its program's order, until none can move. A turn comes when
/// all that its actions need is done; `take(turn)` is called for each, in an order in which they
/// could have run. Sends never block, so what stalls here stalls on any transport.
///
///     rank 0   F0 F1 B0 .      next[0] = 3
///     rank 1   F0 | B0 F1 .    next[1] = 1: done is what stands left of the bar
///
/// Returns the first step that each rank has not done: its program's size, if it came to the end.
template <class Take>
std::vector<int> play(const Schedule& schedule, const Places& places, Take take) {
  std::vector<int> next(schedule.programs.size(), 0);
  const auto is_done = [&](const Action& action) {
    const int step = places.step(action);
    return step != kNowhere &&
           step < next[static_cast<std::size_t>(schedule.rank_of(action.stage))];
  };
  const auto is_ready = [&](const Action& action) {
    const Needs wanted = needs(action, schedule, places);
    return std::all_of(wanted.begin(), wanted.end(), is_done);
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      const Program& program = schedule.programs[static_cast<std::size_t>(rank)];
      int& at = next[static_cast<std::size_t>(rank)];
      while (at < static_cast<int>(program.size())) {
        const Action* first = program.data() + at;
        const int count = turn_size(*first);
        if (!std::all_of(first, first + count, is_ready)) break;
        take(Turn{rank, at, count});
        at += count;
        moved = true;
      }
    }
  }
  return next;
}

}  // namespace trireme::pipeline
