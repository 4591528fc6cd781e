#pragma once

#include "trireme/nn/layer.h"

namespace trireme::nn {

/// silu(gate) times up (Shazeer 2020), for features [gate | up] of `width` each: what a Linear with
/// two sections of `width` gives. Cut it as that Linear, by column: then each rank has a part of
/// both, side by side.
class SwiGluImpl : public LayerImpl {
 public:
  explicit SwiGluImpl(int64_t width) : width_(width) {}

  Layouts layouts(Style style, Sequence sequence) const override;

  /// The output can be computed again from now on (Flow::remake).
  void remake_output() { remakes_ = true; }

 protected:
  Flow compute(const Flow& in) override;
  std::optional<Cut> feature_cut() const override;
  bool backward_reads_weights() const override { return false; }

 private:
  int64_t width_;
  bool remakes_ = false;
};
TORCH_MODULE(SwiGlu);

/// The same function, differentiable: [..., 2 n] becomes [..., n].
at::Tensor swiglu(const at::Tensor& z);

}  // namespace trireme::nn
