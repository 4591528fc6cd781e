#pragma once

#include "trireme/nn/layers.h"

namespace trireme::nn {

/// x / sqrt(mean(x^2) + epsilon) times a weight, over the last dim (Zhang and Sennrich 2019). As
/// LayerNorm, but without mean and bias; `passes_input` and `remake_output` are the same.
class RmsNormImpl : public LayerImpl {
 public:
  using Options = LayerNormImpl::Options;
  explicit RmsNormImpl(int64_t width) : RmsNormImpl(width, Options{}) {}
  RmsNormImpl(int64_t width, Options options);
  at::Tensor weight;

  /// The output can be computed again from now on (Flow::remake).
  void remake_output(WeightsLater weights) { remakes_ = weights; }

 protected:
  Flow compute(const Flow& in) override;

 private:
  Options options_;
  std::optional<WeightsLater> remakes_;
};
TORCH_MODULE(RmsNorm);

}  // namespace trireme::nn
