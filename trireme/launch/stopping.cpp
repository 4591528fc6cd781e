#include "trireme/launch/stopping.h"

namespace trireme::launch {

void Stopping::plan(std::vector<Step> steps, net::Deadline now) {
  steps_ = std::move(steps);
  step_ = 0;
  since_ = now;
}

std::optional<net::Deadline> Stopping::due() const {
  if (step_ == steps_.size()) return std::nullopt;
  return since_ + steps_[step_].wait;
}

int Stopping::take(net::Deadline now) {
  const auto next = due();
  if (!next || *next > now) return 0;
  since_ = now;
  return steps_[step_++].signal;
}

}  // namespace trireme::launch
