#include "trireme/optim/optimizer.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "trireme/comm/dtype.h"
#include "trireme/core/error.h"
#include "trireme/cuda/adamw.h"
#include "trireme/optim/fused.h"
#include "trireme/optim/offload.h"

namespace trireme::optim {

namespace {

/// Calls a kernel with the learning rate as a number, or on a GPU as a tensor, so that the host
/// does not wait for it. Such a tensor is float32, which is not enough for float64 parameters.
template <class Run>
void with_rate(const at::Tensor& rate, at::ScalarType dtype, const Run& run) {
  if (rate.is_cpu() || dtype == at::kDouble)
    run(rate.item<double>());
  else
    run(rate.to(at::kFloat));
}

/// The divisor as torch's kernels take it, a float: enough for float32. Gradients of float64 are
/// divided before.
std::optional<at::Tensor> float_divisor(const at::Tensor& divisor, at::ScalarType dtype) {
  return dtype == at::kFloat ? std::optional(divisor.to(at::kFloat)) : std::nullopt;
}

std::optional<at::Tensor> if_defined(const at::Tensor& one) {
  return one.defined() ? std::optional(one) : std::nullopt;
}

/// Gradients in the dtype of their parameters: on one GPU they may still have 16 bits.
std::vector<at::Tensor> widened(const std::vector<at::Tensor>& gradients, at::ScalarType dtype) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& one : gradients) all.push_back(one.to(dtype));
  return all;
}

/// Copies of 16-bit parameters exist for at most so many elements at a time.
constexpr int64_t kMostCopied = 1 << 20;

bool is_half(const at::Tensor& parameter) {
  return comm::is_half(parameter.scalar_type());
}

/// The optimizer's options with the weight decay of a call.
template <class Options, class Call>
Options options_of(Options options, const Call& call) {
  options.weight_decay = call.weight_decay.value_or(options.weight_decay);
  return options;
}

/// Of an Optimizer::KernelCall, which is protected.
template <class Call>
FusedNumbers numbers_of(const Call& call) {
  return {.decay = call.decay,
          .divisor = float_divisor(call.numbers.divisor, call.parameters.front().scalar_type()),
          .skip = if_defined(call.numbers.skip)};
}

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
  void update(const KernelCall& call) override {
    const auto dtype = call.parameters.front().scalar_type();
    if (call.parameters.front().is_cuda() && dtype == at::kFloat) return update_on_gpu(call);
    const auto run = [&](const auto& rate) {
      fused_adamw({call.parameters, widened(call.gradients, dtype), pick(averages_, call),
                   pick(squares_, call), call.steps},
                  options_of(options_, call), rate, numbers_of(call));
    };
    with_rate(call.numbers.rate, dtype, run);
  }
  bool writes_weights() const override { return true; }

 private:
  void update_on_gpu(const KernelCall& call) const {
    const auto averages = pick(averages_, call), squares = pick(squares_, call);
    std::vector<cuda::AdamWTensor> tensors;
    for (std::size_t i = 0; i < call.slots.size(); ++i)
      tensors.push_back({.master = call.parameters[i],
                         .gradient = call.gradients[i],
                         .average = averages[i],
                         .square = squares[i],
                         .weight = call.elements ? at::Tensor() : slot(call.slots[i]).weight,
                         .count = call.steps[i],
                         .decays = call.decay});
    cuda::adamw(tensors, {.beta1 = options_.beta1,
                          .beta2 = options_.beta2,
                          .epsilon = options_.epsilon,
                          .decay = options_of(options_, call).weight_decay,
                          .rate = call.numbers.rate,
                          .divisor = call.numbers.divisor,
                          .skip = call.numbers.skip});
  }

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
  void update(const KernelCall& call) override {
    const auto dtype = call.parameters.front().scalar_type();
    const auto run = [&](const auto& rate) {
      fused_sgd({call.parameters,
                 widened(call.gradients, dtype),
                 momenta_.empty() ? std::vector<at::Tensor>{} : pick(momenta_, call),
                 {},
                 {}},
                options_of(options_, call), rate, numbers_of(call));
    };
    with_rate(call.numbers.rate, dtype, run);
  }

 private:
  const SgdOptions options_;
  std::vector<at::Tensor> momenta_;
};

/// The kernels ignore strides: parameter, gradient and state must have the same memory order
/// (channels_last, for one).
at::Tensor laid_out_as(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (gradient.strides() == parameter.strides()) return gradient;
  return at::empty_like(parameter.detach(), gradient.options()).copy_(gradient);
}

/// The elements in the order of memory.
at::Tensor flat(const at::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1});
}

}  // namespace

Optimizer::Optimizer(std::vector<Slot> slots, StateIn where) : slots_(std::move(slots)) {
  if (where == StateIn::Host) {
    offload_ = std::make_unique<Offload>(slots_);
    slots_ = offload_->mirrors();
  }
  for (const Slot& slot : slots_) {
    core::check(slot.parameter.is_non_overlapping_and_dense(),
                "optimizer: the elements of '{}' do not lie side by side in memory", slot.name);
    core::check(slot.parameter.scalar_type() != at::kHalf,
                "optimizer: '{}' is float16; keep a float32 master of it", slot.name);
  }
  const auto options = slots_.empty() ? at::TensorOptions() : slots_.front().parameter.options();
  counts_ = at::zeros({static_cast<int64_t>(slots_.size())},
                      options.dtype(at::kFloat).requires_grad(false));
  for (std::size_t i = 0; i < slots_.size(); ++i)
    steps_.push_back(counts_[static_cast<int64_t>(i)]);
}

Optimizer::~Optimizer() = default;

void Optimizer::step(double learning_rate, double divisor) {
  const auto number = [&](double value) {
    return at::full({}, value, counts_.options().dtype(at::kDouble));
  };
  step({number(learning_rate), number(divisor), {}});
}

void Optimizer::step(const Update& update) {
  const at::NoGradGuard guard;
  if (!offload_) return step_some(0, slots_.size(), update);
  const Update here{update.rate.cpu(), update.divisor.cpu(),
                    update.skip.defined() ? update.skip.cpu() : at::Tensor()};
  offload_->fetch_gradients();
  for (const auto& [begin, end] : offload_->runs()) {
    offload_->wait_for(begin);
    step_some(begin, end, here);
    offload_->send_parameters(begin, end);
  }
  offload_->finish();
}

/// Updates slots [begin, end).
void Optimizer::step_some(std::size_t begin, std::size_t end, const Update& update) {
  std::map<std::tuple<at::ScalarType, bool, std::optional<double>, double>, KernelCall> calls;
  for (std::size_t i = begin; i < end; ++i) {
    const Slot& slot = slots_[i];
    const at::Tensor& gradient = slot.parameter.grad();
    if (!gradient.defined()) continue;
    if (is_half(slot.parameter)) {
      update_half(i, update);
      continue;
    }
    const auto key =
        std::tuple(slot.parameter.scalar_type(), slot.decay, slot.weight_decay, slot.rate);
    KernelCall& call = calls.try_emplace(key, call_like(slot)).first->second;
    call.slots.push_back(i);
    call.parameters.push_back(slot.parameter.detach());
    call.gradients.push_back(laid_out_as(slot.parameter, gradient));
    call.steps.push_back(steps_[i]);
  }
  for (auto& [key, call] : calls) {
    count(call.steps, update);
    run(call, update);
  }
}

void Optimizer::count(const std::vector<at::Tensor>& steps, const Update& update) const {
  if (update.skip.defined())
    at::_foreach_add_(steps, 1 - update.skip);
  else
    at::_foreach_add_(steps, 1);
}

/// A call without slots for parameters that are updated as this one is.
Optimizer::KernelCall Optimizer::call_like(const Slot& slot) {
  return {.decay = slot.decay, .weight_decay = slot.weight_decay, .rate = slot.rate};
}

void Optimizer::run(KernelCall& call, const Update& update) {
  call.numbers = update;
  if (call.rate != 1) call.numbers.rate = update.rate * call.rate;
  if (call.parameters.front().scalar_type() != at::kFloat)  // see float_divisor
    for (at::Tensor& gradient : call.gradients) gradient.div_(update.divisor);
  this->update(call);
}

bool Optimizer::rounds_weights() const {
  return !offload_ && writes_weights() &&
         std::all_of(slots_.begin(), slots_.end(), [](const Slot& one) {
           return !one.weight.defined() ||
                  (one.parameter.is_cuda() && one.parameter.scalar_type() == at::kFloat);
         });
}

/// Updates a parameter of 16 bits, in a float32 copy of some of its elements at a time.
void Optimizer::update_half(std::size_t i, const Update& update) {
  const Slot& slot = slots_[i];
  core::check(slot.random_bits != nullptr, "optimizer: '{}' has 16 bits and no random numbers",
              slot.name);
  const at::Tensor bits = slot.random_bits(static_cast<int64_t>(steps_[i].item<float>()));
  const at::Tensor parameter = flat(slot.parameter.detach()),
                   gradient = flat(laid_out_as(slot.parameter, slot.parameter.grad())),
                   random = flat(laid_out_as(slot.parameter, bits.to(parameter.device())));
  count({steps_[i]}, update);
  for (int64_t begin = 0; begin < parameter.numel(); begin += kMostCopied) {
    const int64_t length = std::min(kMostCopied, parameter.numel() - begin);
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, begin, length); };
    KernelCall call = call_like(slot);
    call.slots = {i};
    call.parameters = {part(parameter).to(at::kFloat)};
    call.gradients = {part(gradient)};
    call.steps = {steps_[i]};
    call.elements = {{begin, length}};
    run(call, update);
    part(parameter).copy_(round_at_random(call.parameters.front(), part(random)));
  }
}

at::Tensor round_at_random(const at::Tensor& x, const at::Tensor& bits) {
  // A bfloat16 is the upper half of a float32. Adding the bits to the lower half carries into the
  // upper one with the right probability; infinities do not change.
  constexpr int64_t kLower = 0xffff;
  const at::Tensor rounded = bits.to(at::kInt)
                                 .bitwise_and_(kLower)
                                 .add_(x.contiguous().view(at::kInt))
                                 .bitwise_and_(~kLower)
                                 .view(at::kFloat);
  return at::where(x.isnan(), x, rounded).to(at::kBFloat16);  // the sum may turn a nan into 0
}

int64_t bytes_to_round(int64_t elements) {
  // Random bits of all; of some a float32 copy, the bits in 32 bits, which are nan, the result.
  return 2 * elements + (4 + 4 + 1 + 4 + 2) * std::min(elements, kMostCopied);
}

const std::vector<Slot>& Optimizer::slots() const {
  return offload_ ? offload_->slots() : slots_;
}

void Optimizer::set_steps(const std::vector<int64_t>& steps) {
  core::check(steps.size() == steps_.size(), "optimizer: {} step counts for {} parameters",
              steps.size(), steps_.size());
  if (offload_) offload_->refresh();
  if (!steps.empty()) counts_.copy_(at::tensor(steps, at::kLong));
}

std::vector<int64_t> Optimizer::steps() const {
  const at::Tensor counts = counts_.to(at::kCPU, at::kLong).contiguous();
  return {counts.data_ptr<int64_t>(), counts.data_ptr<int64_t>() + counts.numel()};
}

std::vector<at::Tensor> Optimizer::pick(const std::vector<at::Tensor>& all,
                                        const KernelCall& call) const {
  std::vector<at::Tensor> picked;
  for (std::size_t slot : call.slots) {
    const auto& some = call.elements;
    picked.push_back(some ? flat(all[slot]).narrow(0, some->first, some->second) : all[slot]);
  }
  return picked;
}

std::vector<at::Tensor> Optimizer::zeros_like_parameters() const {
  std::vector<at::Tensor> all;
  std::map<at::ScalarType, int64_t> elems;
  constexpr int64_t kAlign = 16;
  const auto padded = [](int64_t count) { return (count + kAlign - 1) / kAlign * kAlign; };
  const auto dtype_of = [](const Slot& slot) {
    return is_half(slot.parameter) ? at::kFloat : slot.parameter.scalar_type();
  };
  for (const Slot& slot : slots_) elems[dtype_of(slot)] += padded(slot.parameter.numel());
  std::map<at::ScalarType, std::pair<at::Tensor, int64_t>> blocks;
  for (const auto& [dtype, count] : elems)
    blocks[dtype] = {
        at::zeros({count}, slots_.front().parameter.options().dtype(dtype).requires_grad(false)),
        0};
  for (const Slot& slot : slots_) {
    auto& [block, used] = blocks[dtype_of(slot)];
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

at::Tensor clip_divisor(const at::Tensor& norm, double clip) {
  return ((norm + core::kClipEpsilon) / clip).clamp_min(1.0);
}

}  // namespace trireme::optim
