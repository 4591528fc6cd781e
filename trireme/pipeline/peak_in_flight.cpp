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

}  // namespace trireme::pipeline
