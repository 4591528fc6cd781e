#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "trireme/optim/resumable.h"

namespace trireme::optim {

/// Only parameters of two or more dims are decayed. Pass the shape of the whole, because a shard is
/// flat.
inline bool is_decayed(at::IntArrayRef whole) {
  return whole.size() >= 2;
}

/// Where an optimizer keeps its state and does its work: beside the parameters, or in the host's
/// memory, so that a GPU holds only parameters and gradients.
enum class StateIn : uint8_t { Device, Host };

class Offload;

/// Updates parameters from their gradients by torch's fused kernels. A parameter whose gradient is
/// undefined is left alone, and does not count the step, as in torch.
class Optimizer : public Resumable {
 public:
  Optimizer(std::vector<Slot> slots, StateIn where);
  ~Optimizer() override;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update. Gradients are divided by `divisor` on the way: sums become means, clipped.
  void step(double learning_rate, double divisor = 1);

  const std::vector<Slot>& slots() const override;
  std::vector<int64_t> steps() const override { return counts_; }
  void set_steps(const std::vector<int64_t>& steps) override;

 protected:
  /// The slots of one call of the kernel. They have the same dtype and decay, and all or none of
  /// them have been updated before.
  struct KernelCall {
    std::vector<std::size_t> slots;
    std::vector<at::Tensor> parameters, gradients, steps;
    bool decay = false, first = false;
  };
  virtual void update(const KernelCall& call, double learning_rate,
                      const std::optional<at::Tensor>& divisor) = 0;

  std::vector<at::Tensor> pick(const std::vector<at::Tensor>& all, const KernelCall& call) const;
  /// Zeros of every parameter's shape, in one block of memory.
  std::vector<at::Tensor> zeros_like_parameters() const;

 private:
  void step_some(std::size_t begin, std::size_t end, double learning_rate, double divisor);

  std::vector<Slot> slots_;  // as the kernels see them
  std::unique_ptr<Offload> offload_;
  std::vector<int64_t> counts_;
  std::vector<at::Tensor> steps_;  // counts_ as the 0-dim floats that the kernels take
};

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
};
/// Loshchilov and Hutter 2019, decoupled weight decay: torch.optim.AdamW(fused=True), bit for bit.
std::unique_ptr<Optimizer> make_adamw(std::vector<Slot> slots, AdamWOptions options,
                                      StateIn where = StateIn::Device);

struct SgdOptions {
  double momentum = 0.9, weight_decay = 0;
};
/// torch.optim.SGD(fused=True), bit for bit.
std::unique_ptr<Optimizer> make_sgd(std::vector<Slot> slots, SgdOptions options,
                                    StateIn where = StateIn::Device);

/// The divisor that reduces a norm of `norm` to at most `clip` (0: no clipping).
double clip_divisor(double norm, double clip);

}  // namespace trireme::optim
