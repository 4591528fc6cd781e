#include "trireme/parallel/residuals.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <utility>

#include "trireme/comm/dtype.h"

namespace trireme::parallel {

void Residuals::add(const GradientPlacePtr& place) {
  const auto [found, is_new] = kept_.try_emplace(place->key());
  if (!is_new) return;
  found->second.place = place;
  found->second.now = at::zeros({place->numel()}, comm::scalar_type_of(place->dtype));
}

void Residuals::expect(const ExpectedStep& step) {
  expected_ = step;
  divisor_ = -1;
}

double Residuals::divisor() {
  if (divisor_ < 0) divisor_ = expected_.weight ? expected_.weight() * expected_.loss_scale : unit_;
  return divisor_;
}

bool Residuals::weightless() {
  return expected_.weight && divisor() == 0;
}

at::Tensor Residuals::now(const GradientPlace& place) {
  const auto found = kept_.find(place.key());
  if (found == kept_.end()) return {};
  Kept& one = found->second;
  if (std::exchange(one.begun, true)) return one.next;
  if (!one.next.defined()) one.next = at::empty_like(one.now);
  const double ratio = unit_ > 0 ? divisor() / unit_ : 1;
  if (ratio == 1)
    one.next.copy_(one.now);
  else
    at::mul_out(one.next, one.now, at::scalar_tensor(ratio, one.now.options()));
  return one.next;
}

void Residuals::end_step(double weight) {
  next_unit_ = std::isnan(weight) ? divisor() : weight * expected_.loss_scale;
  ended_ = true;
}

bool Residuals::settle() {
  if (!std::exchange(ended_, false)) return false;
  for (auto& [key, one] : kept_)
    if (std::exchange(one.begun, false))
      std::swap(one.now, one.next);
    else if (unit_ > 0 && next_unit_ != unit_)  // its block travelled as it is
      one.now.mul_(next_unit_ / unit_);
  unit_ = next_unit_;
  ++steps_;
  expected_ = {};
  divisor_ = -1;
  return true;
}

void Residuals::undo_step() {
  for (auto& [key, one] : kept_) one.begun = false;
  ended_ = false;
  expected_ = {};
  divisor_ = -1;
}

std::vector<ReducerState> Residuals::states() const {
  std::vector<ReducerState> all;
  for (const auto& [key, one] : kept_)
    for (std::size_t i = 0; i < one.place->pieces.size(); ++i)
      if (one.now.numel() > 0)
        all.push_back({.kind = one.place->shard ? "shard_residual" : "residual",
                       .parameter = one.place->name,
                       .tensor = one.place->part(one.now, i),
                       .piece = one.place->pieces[i],
                       .first = one.place->first});
  return all;
}

core::Json Residuals::state() const {
  return {{"steps", steps_}, {"unit", unit_}};
}

void Residuals::restore(const core::Json& saved) {
  steps_ = saved.value("steps", int64_t{0});
  unit_ = saved.value("unit", 0.0);
  ended_ = false;
}

int64_t Residuals::memory_bytes() const {
  int64_t bytes = 0;
  for (const auto& [key, one] : kept_) bytes += 2 * static_cast<int64_t>(one.now.nbytes());
  return bytes;
}

}  // namespace trireme::parallel
