#include "trireme/optim/update_control.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

namespace trireme::optim {

UpdateControl::UpdateControl(UpdateControlOptions options, c10::Device device)
    : options_(std::move(options)),
      per_weight_(options_.scales
                      ? std::exp2(-std::round(std::log2(std::max(1.0, options_.expected_weight))))
                      : 1),
      device_(device) {
  std::vector<double> rates = options_.rates;
  if (rates.empty()) rates.push_back(0);
  rates_ = at::tensor(rates, at::kDouble).to(device_);
  state_ = at::zeros({kNumbers}, rates_.options());
  int64_t next = 0;
  for (at::Tensor* one : {&updates_, &skipped_, &scale_, &good_, &stopped_}) *one = state_[next++];
  set({.scale = options_.scales ? options_.first_scale : 1});
}

void UpdateControl::set(const State& state) {
  state_.copy_(at::tensor({static_cast<double>(state.updates), static_cast<double>(state.skipped),
                           state.scale, static_cast<double>(state.good), state.stopped ? 1.0 : 0.0},
                          at::kDouble));
}

at::Tensor UpdateControl::loss_scale() const {
  if (!options_.scales) return {};
  return (scale_ * per_weight_).to(at::kFloat);
}

Update UpdateControl::decide(const at::Tensor& totals) {
  const at::NoGradGuard guard;
  const at::Tensor weight = totals[0], loss = totals[1], squares = totals[2];
  const at::Tensor whole = options_.scales ? weight * (scale_ * per_weight_) : weight;
  at::Tensor divisor = whole;
  if (options_.clip > 0) divisor = whole * clip_divisor(squares.sqrt() / whole, options_.clip);

  const bool checks = options_.check_finite || options_.scales;
  const at::Tensor empty = (weight == 0).to(at::kDouble);
  at::Tensor bad = at::zeros_like(stopped_);
  if (checks) {
    bad = (loss * 0 + squares * 0 == 0).logical_not().to(at::kDouble) * (1 - empty);
    if (!options_.scales) bad = at::maximum(stopped_, bad);
  }
  const at::Tensor skip = at::maximum(bad, empty);
  const auto last = static_cast<double>(rates_.numel() - 1);
  const at::Tensor rate =
      rates_.index_select(0, updates_.clamp_max(last).to(at::kLong).unsqueeze(0)).squeeze(0);
  updates_ += 1 - skip;
  skipped_ += bad;
  if (options_.scales) {
    const at::Tensor skips = bad > 0, good = (good_ + (1 - empty)) * (1 - bad);
    const at::Tensor grows = good >= static_cast<double>(options_.growth);
    scale_.copy_(at::where(skips, scale_ * 0.5, at::where(grows, scale_ * 2, scale_)));
    good_.copy_(at::where(grows, at::zeros_like(good), good));
  } else if (checks) {
    stopped_.copy_(bad);
  }
  return {rate, divisor, skip.to(at::kFloat)};
}

at::Tensor UpdateControl::numbers() const {
  return state_;
}

UpdateControl::State UpdateControl::state_of(const at::Tensor& numbers) const {
  const at::Tensor all = numbers.contiguous();
  const auto* value = all.data_ptr<double>();
  return {.updates = static_cast<int64_t>(value[0]),
          .skipped = static_cast<int64_t>(value[1]),
          .scale = value[2],
          .multiplier = value[2] * per_weight_,
          .good = static_cast<int64_t>(value[3]),
          .stopped = value[4] != 0};
}

double UpdateControl::rate_of(int64_t update) const {
  const auto last = static_cast<int64_t>(options_.rates.size()) - 1;
  return last < 0
             ? 0
             : options_.rates[static_cast<std::size_t>(std::clamp<int64_t>(update - 1, 0, last))];
}

core::Json UpdateControl::to_json() const {
  const State now = state();
  core::Json json = {{"updates", now.updates}, {"skipped", now.skipped}};
  if (options_.scales) json.update({{"loss_scale", now.scale}, {"good_steps", now.good}});
  return json;
}

void UpdateControl::restore(const core::Json& saved, int64_t updates) {
  State state{.scale = options_.scales ? options_.first_scale : 1};
  state.updates = saved.value("updates", updates);
  state.skipped = saved.value("skipped", int64_t{0});
  if (options_.scales) {
    state.scale = saved.value("loss_scale", options_.first_scale);
    state.good = saved.value("good_steps", int64_t{0});
  }
  set(state);
}

}  // namespace trireme::optim
