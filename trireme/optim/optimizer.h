#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "trireme/core/clip.h"
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

/// How an update is made: numbers of one element each, where the parameters are.
struct Update {
  at::Tensor rate;     ///< the learning rate, float64
  at::Tensor divisor;  ///< of the gradients, float64: sums become means, clipped and unscaled
  at::Tensor skip;     ///< float32; 1: leave everything as it is. Undefined: 0
};

/// Updates parameters from their gradients by fused kernels: torch's, and on a GPU our own AdamW
/// (cuda/adamw.h). A parameter whose gradient is undefined is left alone, and does not count the
/// step, as in torch.
///
/// A parameter of 16 bits is updated in a float32 copy, which is then rounded at random, up or down
/// in proportion to the distance (`round_at_random`). So updates that are smaller than half of its
/// last bit are not lost, but made on average.
class Optimizer : public Resumable {
 public:
  Optimizer(std::vector<Slot> slots, StateIn where);
  ~Optimizer() override;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void step(const Update& update);
  /// The same with numbers of the host.
  void step(double learning_rate, double divisor = 1);

  /// Does a step also write the weights of the slots? If not, somebody must round the masters.
  bool rounds_weights() const;

  const std::vector<Slot>& slots() const override;
  std::vector<int64_t> steps() const override;
  void set_steps(const std::vector<int64_t>& steps) override;

 protected:
  /// The slots of one call of the kernel. They have the same dtype, decay and rate.
  struct KernelCall {
    std::vector<std::size_t> slots = {};
    std::vector<at::Tensor> parameters = {}, gradients = {}, steps = {};
    bool decay = false;
    std::optional<double> weight_decay = {};  ///< instead of the optimizer's
    double rate = 1;                          ///< times that of the update
    /// If it is only a part of its one slot: the first element, in the order of memory, and how
    /// many.
    std::optional<std::pair<int64_t, int64_t>> elements = {};
    Update numbers = {};
  };
  virtual void update(const KernelCall& call) = 0;
  /// Whether `update` writes the weights of slots that live on a GPU.
  virtual bool writes_weights() const { return false; }

  const Slot& slot(std::size_t i) const { return slots_[i]; }

  std::vector<at::Tensor> pick(const std::vector<at::Tensor>& all, const KernelCall& call) const;
  /// Zeros of every parameter's shape, in one block of memory, of at least 32 bits each.
  std::vector<at::Tensor> zeros_like_parameters() const;

 private:
  void step_some(std::size_t begin, std::size_t end, const Update& update);
  void update_half(std::size_t slot, const Update& update);
  void count(const std::vector<at::Tensor>& steps, const Update& update) const;
  static KernelCall call_like(const Slot& slot);
  void run(KernelCall& call, const Update& update);

  std::vector<Slot> slots_;  // as the kernels see them
  std::unique_ptr<Offload> offload_;
  at::Tensor counts_;              // how many updates each slot has had, float32
  std::vector<at::Tensor> steps_;  // its elements, as the kernels take them
};

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
};
/// Loshchilov and Hutter 2019, decoupled weight decay: torch.optim.AdamW(fused=True), bit for bit
/// on the CPU; on a GPU float32 parameters may differ from torch's by a rounding.
std::unique_ptr<Optimizer> make_adamw(std::vector<Slot> slots, AdamWOptions options,
                                      StateIn where = StateIn::Device);

struct SgdOptions {
  double momentum = 0.9, weight_decay = 0;
};
/// torch.optim.SGD(fused=True), bit for bit.
std::unique_ptr<Optimizer> make_sgd(std::vector<Slot> slots, SgdOptions options,
                                    StateIn where = StateIn::Device);

using core::clip_divisor;
/// The same of a norm on the device; `clip` is more than 0.
at::Tensor clip_divisor(const at::Tensor& norm, double clip);

/// Rounds float32 numbers to bfloat16. `bits`, int16, has 16 random bits for each. A
/// number between two neighbours becomes the upper one with the probability (x - lower) / (upper -
/// lower), so that its expected value is x.
at::Tensor round_at_random(const at::Tensor& x, const at::Tensor& bits);

/// The bytes that an update of so many elements of 16 bits needs for a moment.
int64_t bytes_to_round(int64_t elements);

}  // namespace trireme::optim
