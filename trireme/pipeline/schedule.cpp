#include "trireme/pipeline/schedule.h"

namespace trireme::pipeline {

std::vector<int> Schedule::stages_of(int rank) const {
  std::vector<int> mine;
  for (int stage = 0; stage < stages(); ++stage)
    if (rank_of(stage) == rank) mine.push_back(stage);
  return mine;
}

}  // namespace trireme::pipeline
