#pragma once

#include "trireme/nn/layer.h"
#include "trireme/nn/weight_queue.h"

namespace trireme::nn {

/// y = x W^T + b, cut over the tensor axis by column or by row where a plan says so:
///
///   Column   y = enter(x) W_r^T + b_r        W_r: this rank's output features
///   Row      y = leave(x_r W_r^T) + b        W_r: this rank's input features; b is whole
class LinearImpl : public LayerImpl {
 public:
  struct Options {
    bool bias = true;
    double deviation = 0;  ///< of the initial weights; 0: torch's rule, uniform in +-1/sqrt(in)
    /// What is cut for itself: q, k and v of a projection that makes all three, in grains of a
    /// head. None: all features are one section, of grain 1.
    std::vector<Section> out_sections = {}, in_sections = {};
  };
  LinearImpl(int64_t in, int64_t out);
  LinearImpl(int64_t in, int64_t out, Options options);

  at::Tensor weight, bias;  ///< public, as in torch::nn::LinearImpl; bias may be undefined

  /// Of each section of the output, how many features this rank has, and from which on.
  std::vector<Part> out_parts() const;

  std::map<std::string, Layout> layouts(Style style, Sequence sequence) const override;

  /// Where its weights' gradients go while a backward is split.
  void set_queue(WeightQueuePtr queue) { queue_ = std::move(queue); }

 protected:
  Flow compute(const Flow& in) override;
  std::optional<Cut> feature_cut() const override;

 private:
  int64_t in_, out_;
  Options options_;
  WeightQueuePtr queue_;
};
TORCH_MODULE(Linear);
using LinearOptions = LinearImpl::Options;

/// The same on tensors that are whole: x W^T + b, differentiable. `bias` may be undefined.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// How a layer's weights begin where nothing else is said.
InitRule linear_rule(int64_t in, double deviation);

}  // namespace trireme::nn
