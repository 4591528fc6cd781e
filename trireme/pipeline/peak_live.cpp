#include <algorithm>

#include "trireme/pipeline/passes.h"

namespace trireme::pipeline {

std::vector<int> peak_live(const Schedule& schedule) {
  std::vector<int> peaks;
  for (const Program& program : schedule.programs) {
    int live = 0, peak = 0;
    for (const Action& action : program) {
      if (action.act == Act::Forward) peak = std::max(peak, ++live);
      if (lets_go(action.act)) --live;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace trireme::pipeline
