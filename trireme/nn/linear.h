#pragma once

#include "trireme/nn/layer.h"
#include "trireme/nn/weight_queue.h"

namespace trireme::nn {

/// y = x W^T + b. A plan may cut it over the tensor axis by column or by row:
///
///   Column   y = enter(x) W_r^T + b_r        W_r: this rank's output features
///   Row      y = leave(x_r W_r^T) + b        W_r: this rank's input features; b is whole
///
/// It takes one to three tensors, so that a GPU can do more in one pass over memory:
///
///   {x}          y
///   {x, r}       r + y: the sum with a residual stream
///   {h, z, r}    the same for x = h = gelu(z). The gradient goes to z, none to h
///
/// If the Flow says how to compute x again, backward does so, and x is not kept.
class LinearImpl : public LayerImpl {
 public:
  struct Options {
    bool bias = true;
    double deviation = 0;  ///< of the initial weights; 0: torch's rule, uniform in +-1/sqrt(in)
    /// Sections of the features that are cut separately, such as q, k and v of one projection, each
    /// in grains of a head. If there are none, all features are one section of grain 1.
    std::vector<Section> out_sections = {}, in_sections = {};
    /// The output is gelu(y), in the tanh form. On a GPU in 16 bits it is {gelu(y), y}, and only y
    /// is differentiable: for a Linear that takes both, or `gelu_from`.
    bool gelu = false;
  };
  LinearImpl(int64_t in, int64_t out);
  LinearImpl(int64_t in, int64_t out, Options options);

  at::Tensor weight, bias;  ///< public, as in torch::nn::LinearImpl; bias may be undefined

  /// The range of each section of the output that this rank has.
  std::vector<Range> out_parts() const;

  Layouts layouts(Style style, Sequence sequence) const override;

  /// Adds B (scale A x) to x W^T: a low-rank adapter (Hu et al. 2021). A [rank, in] begins like the
  /// weight of a Linear, B [out, rank] with zeros. They are layers of their own, `lora_A` and
  /// `lora_B`, and cut as this one's input and output are, so that only tensors of width `rank`
  /// travel besides what travels anyway:
  ///
  ///              W         A           B
  ///   Column     rows      positions   rows         B_r (enter(A x))
  ///   Row        columns   columns     positions    B (leave(A_r x_r))
  ///
  /// Call it after nn::cut; nn::add_adapters does for a whole model.
  void add_adapter(int64_t rank, double scale);
  bool has_adapter() const { return adapter_.in != nullptr; }
  /// {A, B}; null without an adapter.
  std::vector<std::shared_ptr<LinearImpl>> adapter() const;
  double adapter_scale() const { return adapter_.scale; }

  /// The output of a Linear with `gelu` can be computed again from now on (Flow::remake).
  void remake_output() { remakes_ = true; }

  /// Sets the queue for weight gradients, which is used while a backward is split.
  void set_queue(WeightQueuePtr queue) { queue_ = std::move(queue); }

 protected:
  Flow compute(const Flow& in) override;
  std::optional<Cut> feature_cut() const override;

 private:
  struct Adapter {
    std::shared_ptr<LinearImpl> in, out;  // A, B
    double scale = 1;
  };
  at::Tensor adapted(const Flow& in, const at::Tensor& y) const;

  int64_t in_, out_;
  Options options_;
  Adapter adapter_;
  bool remakes_ = false;
  WeightQueuePtr queue_;
};
TORCH_MODULE(Linear);
using LinearOptions = LinearImpl::Options;

/// The same function of whole tensors, x W^T + b, differentiable. `bias` may be undefined.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// A differentiable h of the {h = gelu(z), z} that a Linear gives on a GPU; of one tensor, itself.
Flow gelu_from(const Flow& out);

/// The rule for a Linear's weights: normal of this deviation, or torch's rule if it is 0.
InitRule linear_rule(int64_t in, double deviation);

}  // namespace trireme::nn
