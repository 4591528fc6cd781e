#pragma once

#include "trireme/nn/layer.h"

namespace trireme::nn {

/// Whether element e of sample s is dropped at a step is a function of (seed, layer, step, s, e):
/// the same for every way of cutting the batch, the positions and the features, and again when it
/// is recomputed.
class DropoutImpl : public LayerImpl {
 public:
  /// `width`: how many features there are in all; a dropout that is cut by Column must know. They
  /// are then cut as one section of grain 1.
  explicit DropoutImpl(double probability, int64_t width = 0);

  double probability() const { return probability_; }
  std::map<std::string, Layout> layouts(Style style, Sequence sequence) const override;

 protected:
  at::Tensor compute(const at::Tensor& x, const Where* where) override;
  using LayerImpl::compute;
  std::optional<Cut> feature_cut() const override;

 private:
  double probability_;
  int64_t width_;
};
TORCH_MODULE(Dropout);

/// The logical elements of one sample that a rank has, [positions, features] of the whole.
struct Elements {
  int64_t first_position = 0;
  int64_t width = 0;  ///< features of the whole
  Part features = {};
};

/// The mask of a dropout, 0 or 1 / (1 - p), for a tensor of this shape: a sample per row, of which
/// the rank has these elements.
at::Tensor dropout_mask(const LayerImpl& layer, const Where* where, double probability,
                        at::IntArrayRef shape, const Elements& elements,
                        const at::TensorOptions& options);

}  // namespace trireme::nn
