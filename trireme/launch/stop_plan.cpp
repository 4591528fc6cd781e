#include "trireme/launch/stop_plan.h"

namespace trireme::launch {

void StopPlan::plan(std::vector<TimedSignal> steps, net::Deadline now) {
  steps_ = std::move(steps);
  step_ = 0;
  since_ = now;
}

std::optional<net::Deadline> StopPlan::due() const {
  if (step_ == steps_.size()) return std::nullopt;
  return since_ + steps_[step_].wait;
}

int StopPlan::take(net::Deadline now) {
  const auto next = due();
  if (!next || *next > now) return 0;
  since_ = now;
  return steps_[step_++].signal;
}

}  // namespace trireme::launch
