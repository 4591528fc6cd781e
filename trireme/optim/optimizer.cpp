#include "trireme/optim/optimizer.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "trireme/core/error.h"
#include "trireme/optim/offload.h"

namespace trireme::optim {

namespace {

class AdamW final : public Optimizer {
 public:
  AdamW(std::vector<Slot> slots, AdamWOptions options, StateIn where)
      : Optimizer(std::move(slots), where),
        options_(options),
        averages_(zeros_like_parameters()),
        squares_(zeros_like_parameters()) {}

  std::string kind() const override { return "adamw"; }
  std::vector<OptimizerState> states() override {
    std::vector<OptimizerState> all;
    for (std::size_t i = 0; i < averages_.size(); ++i) {
      all.push_back({"exp_avg", i, averages_[i]});
      all.push_back({"exp_avg_sq", i, squares_[i]});
    }
    return all;
  }

 protected:
  void update(const KernelCall& call, double learning_rate,
              const std::optional<at::Tensor>& divisor) override {
    at::_fused_adamw_(call.parameters, call.gradients, pick(averages_, call), pick(squares_, call),
                      {}, call.steps, learning_rate, options_.beta1, options_.beta2,
                      call.decay ? options_.weight_decay : 0, options_.epsilon,
                      /*amsgrad=*/false, /*maximize=*/false, divisor, {});
  }

 private:
  const AdamWOptions options_;
  const std::vector<at::Tensor> averages_, squares_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(std::vector<Slot> slots, SgdOptions options, StateIn where)
      : Optimizer(std::move(slots), where), options_(options) {
    if (options_.momentum != 0) momenta_ = zeros_like_parameters();
  }

  std::string kind() const override { return "sgd"; }
  std::vector<OptimizerState> states() override {
    std::vector<OptimizerState> all;
    for (std::size_t i = 0; i < momenta_.size(); ++i) all.push_back({"momentum", i, momenta_[i]});
    return all;
  }

 protected:
  void update(const KernelCall& call, double learning_rate,
              const std::optional<at::Tensor>& divisor) override {
    at::_fused_sgd_(call.parameters, call.gradients,
                    momenta_.empty() ? std::vector<at::Tensor>{} : pick(momenta_, call),
                    call.decay ? options_.weight_decay : 0, options_.momentum, learning_rate,
                    /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false, call.first, divisor,
                    {});
  }

 private:
  const SgdOptions options_;
  std::vector<at::Tensor> momenta_;
};

/// The kernels ignore strides: parameter, gradient and state must have the same memory order
/// (channels_last, for one).
at::Tensor laid_out_as(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (gradient.strides() == parameter.strides()) return gradient;
  return at::empty_like(parameter.detach()).copy_(gradient);
}

}  // namespace

Optimizer::Optimizer(std::vector<Slot> slots, StateIn where)
    : slots_(std::move(slots)), counts_(slots_.size()) {
  if (where == StateIn::Host) {
    offload_ = std::make_unique<Offload>(slots_);
    slots_ = offload_->mirrors();
  }
  for (const Slot& slot : slots_) {
    core::check(slot.parameter.is_non_overlapping_and_dense(),
                "optimizer: the elements of '{}' do not lie side by side in memory", slot.name);
    steps_.push_back(
        at::zeros({}, slot.parameter.options().dtype(at::kFloat).requires_grad(false)));
  }
}

Optimizer::~Optimizer() = default;

void Optimizer::step(double learning_rate, double divisor) {
  const at::NoGradGuard guard;
  if (!offload_) return step_some(0, slots_.size(), learning_rate, divisor);
  offload_->fetch_gradients();
  for (const auto& [begin, end] : offload_->runs()) {
    offload_->wait_for(begin);
    step_some(begin, end, learning_rate, divisor);
    offload_->send_parameters(begin, end);
  }
  offload_->finish();
}

/// Updates slots [begin, end).
void Optimizer::step_some(std::size_t begin, std::size_t end, double learning_rate,
                          double divisor) {
  std::map<std::tuple<at::ScalarType, bool, bool>, KernelCall> calls;
  for (std::size_t i = begin; i < end; ++i) {
    const Slot& slot = slots_[i];
    const at::Tensor& gradient = slot.parameter.grad();
    if (!gradient.defined()) continue;
    const bool first = counts_[i]++ == 0;
    KernelCall& call = calls[{slot.parameter.scalar_type(), slot.decay, first}];
    call.decay = slot.decay;
    call.first = first;
    call.slots.push_back(i);
    call.parameters.push_back(slot.parameter.detach());
    call.gradients.push_back(laid_out_as(slot.parameter, gradient));
    call.steps.push_back(steps_[i].add_(1));
  }
  for (auto& [key, call] : calls) {
    // The kernels divide by a float: enough for float32, not for float64.
    std::optional<at::Tensor> scale;
    if (divisor != 1 && std::get<0>(key) == at::kFloat)
      scale = at::full({}, divisor, call.parameters.front().options().dtype(at::kFloat));
    else if (divisor != 1)
      for (at::Tensor& gradient : call.gradients) gradient.div_(divisor);
    update(call, learning_rate, scale);
  }
}

const std::vector<Slot>& Optimizer::slots() const {
  return offload_ ? offload_->slots() : slots_;
}

void Optimizer::set_steps(const std::vector<int64_t>& steps) {
  core::check(steps.size() == steps_.size(), "optimizer: {} step counts for {} parameters",
              steps.size(), steps_.size());
  counts_ = steps;
  if (offload_) offload_->refresh();
  for (std::size_t i = 0; i < steps.size(); ++i) steps_[i].fill_(static_cast<double>(steps[i]));
}

std::vector<at::Tensor> Optimizer::pick(const std::vector<at::Tensor>& all,
                                        const KernelCall& call) const {
  std::vector<at::Tensor> picked;
  for (std::size_t slot : call.slots) picked.push_back(all[slot]);
  return picked;
}

std::vector<at::Tensor> Optimizer::zeros_like_parameters() const {
  std::vector<at::Tensor> all;
  std::map<at::ScalarType, int64_t> elems;
  constexpr int64_t kAlign = 16;
  const auto padded = [](int64_t count) { return (count + kAlign - 1) / kAlign * kAlign; };
  for (const Slot& slot : slots_)
    elems[slot.parameter.scalar_type()] += padded(slot.parameter.numel());
  std::map<at::ScalarType, std::pair<at::Tensor, int64_t>> blocks;
  for (const auto& [dtype, count] : elems)
    blocks[dtype] = {
        at::zeros({count}, slots_.front().parameter.options().dtype(dtype).requires_grad(false)),
        0};
  for (const Slot& slot : slots_) {
    auto& [block, used] = blocks[slot.parameter.scalar_type()];
    all.push_back(block.as_strided(slot.parameter.sizes(), slot.parameter.strides(), used));
    used += padded(slot.parameter.numel());
  }
  return all;
}

std::unique_ptr<Optimizer> make_adamw(std::vector<Slot> slots, AdamWOptions options,
                                      StateIn where) {
  return std::make_unique<AdamW>(std::move(slots), options, where);
}

std::unique_ptr<Optimizer> make_sgd(std::vector<Slot> slots, SgdOptions options, StateIn where) {
  return std::make_unique<Sgd>(std::move(slots), options, where);
}

double clip_divisor(double norm, double clip) {
  constexpr double kEpsilon = 1e-6;  // as torch's clip_grad_norm_
  return clip > 0 ? std::max(1.0, (norm + kEpsilon) / clip) : 1;
}

}  // namespace trireme::optim
