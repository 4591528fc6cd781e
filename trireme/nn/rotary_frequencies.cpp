// The frequencies of rotary positions, and how they are scaled.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/nn/rotary.h"

namespace trireme::nn {

namespace {

constexpr double kTurn = 2 * std::numbers::pi;

/// theta^(-2 i / D)
std::vector<double> plain(int64_t head, double theta) {
  std::vector<double> all;
  for (int64_t i = 0; i < head; i += 2)
    all.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(head)));
  return all;
}

double llama3(const RotaryOptions& options, double frequency) {
  const double turns = static_cast<double>(options.trained_on) * frequency / kTurn;
  if (turns < options.low) return frequency / options.factor;
  if (turns > options.high) return frequency;
  const double smooth = (turns - options.low) / (options.high - options.low);
  return (1 - smooth) * frequency / options.factor + smooth * frequency;
}

/// The pair that makes this many turns over the trained length, as a real number.
double pair_with(double turns, const RotaryOptions& options) {
  return static_cast<double>(options.head) *
         std::log(static_cast<double>(options.trained_on) / (turns * kTurn)) /
         (2 * std::log(options.theta));
}

RotaryFrequencies yarn(const RotaryOptions& options) {
  constexpr double kFast = 32, kSlow = 1;  // turns
  const double first = std::max(std::floor(pair_with(kFast, options)), 0.0);
  double last =
      std::min(std::ceil(pair_with(kSlow, options)), static_cast<double>(options.head - 1));
  if (first == last) last += 0.001;  // a step, and no division by zero
  RotaryFrequencies all{plain(options.head, options.theta),
                        options.factor > 1 ? 0.1 * std::log(options.factor) + 1 : 1};
  for (std::size_t i = 0; i < all.radians.size(); ++i) {
    const double slow = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    all.radians[i] *= slow / options.factor + (1 - slow);
  }
  return all;
}

/// The theta with which `length` positions are as `trained_on` were.
double stretched_theta(const RotaryOptions& options, int64_t length) {
  const double reach = static_cast<double>(std::max(length, options.trained_on)) /
                       static_cast<double>(options.trained_on);
  const auto head = static_cast<double>(options.head);
  return options.theta * std::pow(options.factor * reach - (options.factor - 1), head / (head - 2));
}

}  // namespace

RotaryFrequencies rotary_frequencies(const RotaryOptions& options, int64_t length) {
  if (options.scaling == RotaryScaling::Yarn) return yarn(options);
  if (options.scaling == RotaryScaling::Dynamic)
    return {plain(options.head, stretched_theta(options, length))};
  RotaryFrequencies all{plain(options.head, options.theta)};
  for (double& frequency : all.radians) {
    if (options.scaling == RotaryScaling::Linear) frequency /= options.factor;
    if (options.scaling == RotaryScaling::Llama3) frequency = llama3(options, frequency);
  }
  return all;
}

}  // namespace trireme::nn
