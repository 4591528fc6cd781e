#include "trireme/pipeline/schedule.h"

#include <algorithm>

namespace trireme::pipeline {

std::vector<int> Schedule::stages_of(int rank) const {
  std::vector<int> mine;
  for (int stage = 0; stage < stages(); ++stage)
    if (rank_of(stage) == rank) mine.push_back(stage);
  return mine;
}

bool Schedule::has(Act act) const {
  return std::ranges::any_of(programs, [act](const Program& program) {
    return std::ranges::find(program, act, &Action::act) != program.end();
  });
}

}  // namespace trireme::pipeline
