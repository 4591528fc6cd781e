#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trireme/core/json.h"
#include "trireme/optim/optimizer.h"

namespace trireme::optim {

struct UpdateControlOptions {
  std::vector<double> rates;  ///< the learning rate of every update, the first one first
  double clip = 0;            ///< the largest norm of the gradient; 0: no clipping
  /// Refuse an update whose loss or gradient is not finite, and all updates after it.
  bool check_finite = true;
  /// For float16: multiply losses by a scale, skip updates that are not finite, and halve the scale
  /// then. After `growth` good steps in a row it doubles.
  bool scales = false;
  double first_scale = 65536;
  int64_t growth = 2000;
  /// About the total weight of a step. A loss is a sum: backward starts from the scale divided by
  /// the power of two near this number, as if the loss were a mean.
  double expected_weight = 1;
};

/// Decides about every update, with numbers that stay on the device: whether it is made, at which
/// learning rate, and by what gradients are divided.
///
///   totals of a step                   state                       the optimizer gets
///   weight, loss, squares  ──> verdict ──> updates += 1  ──> rate = rates[updates]
///                               │           good, scale      divisor = weight x scale x clipping
///                               └─ not finite: skip = 1, and the state stays, but for the scale
///                                  weight is 0: skip = 1, and the state stays
///
/// The kernels read `skip` themselves. So a bad step never spoils weights, although the host may
/// see the verdict later. Without a scale the first bad step is the last: all later ones are
/// skipped too. (The loss scale is that of torch.amp.GradScaler, Micikevicius et al. 2018.)
class UpdateControl {
 public:
  UpdateControl(UpdateControlOptions options, c10::Device device);

  /// What losses are multiplied by in the next step, one float32 number; undefined: 1.
  at::Tensor loss_scale() const;

  /// Decides about the gradients of a step, and counts it. `totals`: parallel::Totals::on_device.
  Update decide(const at::Tensor& totals);

  /// The state as the host sees it; waits for the device.
  struct State {
    int64_t updates = 0;  ///< made so far
    int64_t skipped = 0;
    double scale = 1;       ///< the loss scale of the next step
    double multiplier = 1;  ///< of losses in the next step: the scale by the expected weight
    int64_t good = 0;       ///< steps since the scale changed
    bool stopped = false;   ///< without a scale: a step was not finite
  };
  State state() const { return state_of(numbers().cpu()); }
  /// The same as numbers on the device, and as they are read from a copy of these.
  at::Tensor numbers() const;
  static constexpr int64_t kNumbers = 5;
  State state_of(const at::Tensor& numbers) const;

  bool scales() const { return options_.scales; }
  /// The learning rate of an update, counted from 1.
  double rate_of(int64_t update) const;

  /// The next update takes the learning rate that follows `updates` updates: for steps that are not
  /// counted one by one.
  void place(int64_t updates) { updates_.fill_(static_cast<double>(updates)); }

  /// For checkpoints.
  core::Json to_json() const;
  /// `updates`: for a checkpoint that does not have them.
  void restore(const core::Json& saved, int64_t updates);

 private:
  void set(const State& state);

  const UpdateControlOptions options_;
  double per_weight_;  // 2^-k near 1 / expected weight
  c10::Device device_;
  at::Tensor rates_;
  /// Float64 numbers, which stay where they are: views of `state_`.
  at::Tensor state_, updates_, skipped_, scale_, good_, stopped_;
};

}  // namespace trireme::optim
