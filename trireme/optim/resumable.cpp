#include "trireme/optim/resumable.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <functional>
#include <map>

namespace trireme::optim {

namespace {

using ParamState = torch::optim::OptimizerParamState;

/// How to read and write the state of one parameter in an optimizer of torch.
struct StateAccess {
  std::string kind;
  std::vector<std::string> names = {};  ///< the names of its tensors
  /// As torch makes it at the first update, with zeros.
  std::function<std::unique_ptr<ParamState>(const at::Tensor& parameter)> make = {};
  std::function<at::Tensor(const ParamState& state, std::size_t i)> tensor = {};
  std::function<int64_t(const ParamState& state)> steps = {};
  std::function<void(ParamState& state, int64_t steps)> set_steps = {};
};

/// An option that must be the same in all groups.
template <class Options, class Get>
auto option_of(torch::optim::Optimizer& optimizer, const Get& get) {
  const auto of = [&](const torch::optim::OptimizerParamGroup& group) {
    return get(static_cast<const Options&>(group.options()));
  };
  const auto first = of(optimizer.param_groups().at(0));
  for (const auto& group : optimizer.param_groups())
    TORCH_CHECK(of(group) == first,
                "a checkpoint cannot hold an optimizer whose groups have different kinds of state "
                "(amsgrad, momentum 0); use one optimizer for each");
  return first;
}

template <class State>
StateAccess adam_access(const std::string& kind, bool amsgrad) {
  StateAccess access{.kind = kind, .names = {"exp_avg", "exp_avg_sq"}};
  if (amsgrad) {
    access.kind += "-amsgrad";
    access.names.emplace_back("max_exp_avg_sq");
  }
  access.make = [amsgrad](const at::Tensor& parameter) {
    auto state = std::make_unique<State>();
    state->exp_avg(at::zeros_like(parameter));
    state->exp_avg_sq(at::zeros_like(parameter));
    if (amsgrad) state->max_exp_avg_sq(at::zeros_like(parameter));
    return state;
  };
  access.tensor = [](const ParamState& state, std::size_t i) {
    const auto& own = static_cast<const State&>(state);
    return i == 0 ? own.exp_avg() : i == 1 ? own.exp_avg_sq() : own.max_exp_avg_sq();
  };
  access.steps = [](const ParamState& state) { return static_cast<const State&>(state).step(); };
  access.set_steps = [](ParamState& state, int64_t steps) {
    static_cast<State&>(state).step(steps);
  };
  return access;
}

StateAccess sgd_access(bool has_momentum) {
  using State = torch::optim::SGDParamState;
  StateAccess access{.kind = "sgd"};
  if (has_momentum) access.names = {"momentum"};
  access.make = [](const at::Tensor& parameter) {
    auto state = std::make_unique<State>();
    state->momentum_buffer(at::zeros_like(parameter));
    return state;
  };
  access.tensor = [](const ParamState& state, std::size_t) {
    return static_cast<const State&>(state).momentum_buffer();
  };
  access.steps = [](const ParamState&) {
    return int64_t{1};
  };  // torch does not count the steps of SGD
  access.set_steps = [](ParamState&, int64_t) {};
  return access;
}

StateAccess access_of(torch::optim::Optimizer& optimizer) {
  namespace to = torch::optim;
  if (dynamic_cast<to::AdamW*>(&optimizer) != nullptr)
    return adam_access<to::AdamWParamState>(
        "adamw", option_of<to::AdamWOptions>(optimizer, [](const auto& o) { return o.amsgrad(); }));
  if (dynamic_cast<to::Adam*>(&optimizer) != nullptr)
    return adam_access<to::AdamParamState>(
        "adam", option_of<to::AdamOptions>(optimizer, [](const auto& o) { return o.amsgrad(); }));
  if (dynamic_cast<to::SGD*>(&optimizer) != nullptr)
    return sgd_access(
        option_of<to::SGDOptions>(optimizer, [](const auto& o) { return o.momentum() != 0; }));
  TORCH_CHECK(false,
              "a checkpoint knows torch's AdamW, Adam and SGD, and the optimizers of "
              "trireme::optim; this is another one");
}

/// Keeps state that torch has not made yet in `waiting_` until it is known to be needed: a
/// parameter that was never updated must have no state in torch's optimizer.
class TorchOptimizer final : public Resumable {
 public:
  TorchOptimizer(torch::optim::Optimizer& optimizer, const std::vector<Slot>& slots)
      : optimizer_(optimizer), access_(access_of(optimizer)) {
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const auto is_it = [&](const Slot& slot) { return slot.parameter.is_same(parameter); };
        const auto slot = std::ranges::find_if(slots, is_it);
        if (slot == slots.end() && !parameter.requires_grad()) continue;  // frozen: not updated
        TORCH_CHECK(slot != slots.end(), "the optimizer updates a parameter of shape ",
                    parameter.sizes(),
                    " that the attached model does not keep here; give it the masters of shards()");
        if (std::ranges::none_of(slots_, is_it)) slots_.push_back(*slot);
      }
    }
  }

  std::string kind() const override { return access_.kind; }
  const std::vector<Slot>& slots() const override { return slots_; }

  std::vector<OptimizerState> states() override {
    std::vector<OptimizerState> states;
    if (access_.names.empty()) return states;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      const ParamState* state = find(slot);
      if (state != nullptr) {
        waiting_.erase(slot);
      } else {
        auto& made = waiting_[slot];
        if (!made) made = access_.make(slots_[slot].parameter);
        state = made.get();
      }
      for (std::size_t i = 0; i < access_.names.size(); ++i)
        states.push_back({access_.names[i], slot, access_.tensor(*state, i)});
    }
    return states;
  }

  std::vector<int64_t> steps() const override {
    std::vector<int64_t> steps;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      const ParamState* state = find(slot);
      steps.push_back(state == nullptr ? 0 : access_.steps(*state));
    }
    return steps;
  }

  void set_steps(const std::vector<int64_t>& steps) override {
    if (access_.names.empty()) return;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      void* const key = key_of(slot);
      if (const auto made = waiting_.find(slot); made != waiting_.end() && steps[slot] > 0)
        optimizer_.state()[key] = std::move(made->second);
      if (steps[slot] > 0)
        access_.set_steps(*optimizer_.state().at(key), steps[slot]);
      else
        optimizer_.state().erase(key);
    }
    waiting_.clear();
  }

 private:
  void* key_of(std::size_t slot) const { return slots_[slot].parameter.unsafeGetTensorImpl(); }

  const ParamState* find(std::size_t slot) const {
    const auto& all = std::as_const(optimizer_).state();
    const auto found = all.find(key_of(slot));
    return found == all.end() ? nullptr : found->second.get();
  }

  torch::optim::Optimizer& optimizer_;
  StateAccess access_;
  std::vector<Slot> slots_;
  std::map<std::size_t, std::unique_ptr<ParamState>> waiting_;
};

}  // namespace

std::unique_ptr<Resumable> resumable(torch::optim::Optimizer& optimizer,
                                     const std::vector<Slot>& slots) {
  return std::make_unique<TorchOptimizer>(optimizer, slots);
}

}  // namespace trireme::optim
