#include <algorithm>

#include "trireme/pipeline/passes.h"

namespace trireme::pipeline {

int most_in_flight(const Schedule& schedule) {
  return 2 * schedule.ranks();
}

// Simulates all ranks as if every forward took the same time. A rank runs the latest stage that can
// run, so that micro-batches leave the pipe before new ones enter; a stage takes its micro-batches
// in order. Two ranks of two stages each, at most four micro-batches in flight:
//
//     rank 0  0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3
//     rank 1   .  1F0 1F1 3F0 3F1 1F2 1F3 3F2 3F3
//
// This order cannot deadlock: every action waits only for actions that come before it here, its
// input and (on the first stage) the end of an earlier micro-batch.
Schedule forwards_only(const Schedule& schedule, int micros) {
  Schedule result{schedule.name, micros, schedule.placement, {}};
  result.programs.resize(schedule.programs.size());
  const int last = schedule.stages() - 1, window = most_in_flight(schedule);
  std::vector<int> done(static_cast<std::size_t>(schedule.stages()), 0);  // micro-batches, by stage
  const auto can_run = [&](int stage) {
    const int micro = done[static_cast<std::size_t>(stage)];
    if (micro >= micros) return false;
    return stage == 0 ? micro < done.back() + window
                      : micro < done[static_cast<std::size_t>(stage) - 1];
  };
  while (done.back() < micros) {
    std::vector<int> now;  // the stages that run at this time
    std::vector<bool> busy(result.programs.size(), false);
    for (int stage = last; stage >= 0; --stage) {
      const auto rank = static_cast<std::size_t>(schedule.rank_of(stage));
      if (busy[rank] || !can_run(stage)) continue;
      busy[rank] = true;
      now.push_back(stage);
    }
    for (const int stage : now) {
      const int micro = done[static_cast<std::size_t>(stage)]++;
      result.programs[static_cast<std::size_t>(schedule.rank_of(stage))].push_back(
          {stage, Act::Forward, micro});
    }
  }
  return result;
}

}  // namespace trireme::pipeline
