#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace trireme::optim {

/// One parameter to be updated.
struct Slot {
  std::string name;
  at::Tensor parameter;
  bool decay = true;  ///< does weight decay apply?
  /// For a parameter of 16 bits: 16 random bits for each element, int16 on the host, for the update
  /// that follows `updates` others.
  std::function<at::Tensor(int64_t updates)> random_bits = {};
  /// If the parameter is the master of a 16-bit weight: the weight, so that an optimizer can round
  /// the new values into it on the way (`Optimizer::rounds_weights`).
  at::Tensor weight = {};
  double rate = 1;                          ///< times the learning rate of an update
  std::optional<double> weight_decay = {};  ///< instead of the optimizer's; only with `decay`
};

/// A tensor that an optimizer keeps for a parameter, as a checkpoint stores it.
struct OptimizerState {
  std::string kind;  ///< "exp_avg", "exp_avg_sq", "momentum"
  std::size_t slot;
  at::Tensor tensor;
};

/// What a checkpoint saves of an optimizer, and gives back to it.
class Resumable {
 public:
  virtual ~Resumable() = default;

  /// "adamw", "sgd": state fits only an optimizer of the same kind.
  virtual std::string kind() const = 0;
  /// The parameters that it updates, as they were given to it.
  virtual const std::vector<Slot>& slots() const = 0;
  /// The tensors of every slot, also before its first update; loading a checkpoint fills them.
  virtual std::vector<OptimizerState> states() = 0;
  /// How many updates each slot has had.
  virtual std::vector<int64_t> steps() const = 0;
  /// Called after a checkpoint was loaded into the parameters and the states.
  virtual void set_steps(const std::vector<int64_t>& steps) = 0;
};

/// Adapts torch's AdamW, Adam or SGD. `slots` are the parameters that it may update; those that it
/// does update become its slots. Throws for another optimizer, or if it updates a parameter that is
/// not in `slots`.
std::unique_ptr<Resumable> resumable(torch::optim::Optimizer& optimizer,
                                     const std::vector<Slot>& slots);

}  // namespace trireme::optim
