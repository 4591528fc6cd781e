#include <algorithm>

#include "trireme/pipeline/passes.h"

namespace trireme::pipeline {

std::vector<int> peak_in_flight(const Schedule& schedule) {
  std::vector<int> peaks;
  for (const Program& program : schedule.programs) {
    int in_flight = 0, peak = 0;
    for (const Action& action : program) {
      if (action.act == Act::Forward) peak = std::max(peak, ++in_flight);
      if (completes_backward(action.act)) --in_flight;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

bool backward_follows(const Program& program, std::size_t forward) {
  const Action& from = program[forward];
  for (std::size_t i = forward + 1; i < program.size(); ++i) {
    const Action& next = program[i];
    if (!is_compute(next.act)) continue;
    return (next.act == Act::Backward || next.act == Act::BackwardInput) &&
           next.stage == from.stage && next.micro == from.micro;
  }
  return false;
}

}  // namespace trireme::pipeline
