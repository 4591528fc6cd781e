#include "trireme/optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme::optim {

double LearningRateSchedule::at(int64_t step) const {
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  if (kind == Kind::Constant) return peak;
  const auto after = static_cast<double>(step - warmup);
  const auto whole = static_cast<double>(std::max<int64_t>(1, steps - warmup));
  const double done = std::min(1.0, after / whole);
  const double left = kind == Kind::Linear ? 1 - done : (1 + std::cos(std::numbers::pi * done)) / 2;
  return peak * (final + (1 - final) * left);
}

}  // namespace trireme::optim
