#pragma once

#include "trireme/nn/layer.h"

namespace trireme::nn {

struct DropoutElements;

/// Dropout whose mask does not depend on the mesh: whether element e of sample s is dropped is a
/// function of (seed, layer name, step, s, e). So it is the same however the batch, the positions
/// and the features are cut, and when the layer is recomputed.
class DropoutImpl : public LayerImpl {
 public:
  /// `width`: the number of features of the whole, needed only where the layer is cut by Column.
  /// They are then cut as one section of grain 1.
  explicit DropoutImpl(double probability, int64_t width = 0);

  double probability() const { return probability_; }
  Layouts layouts(Style style, Sequence sequence) const override;

 protected:
  at::Tensor compute(const at::Tensor& x, const Where* where) override;
  using LayerImpl::compute;
  std::optional<Cut> feature_cut() const override;

 private:
  at::Tensor mask_of_positions(const at::Tensor& x, const Where& where,
                               DropoutElements elements) const;

  double probability_;
  int64_t width_;
};
TORCH_MODULE(Dropout);

/// Which elements of one sample a rank has, of [positions, features] of the whole.
struct DropoutElements {
  int64_t first_position = 0;
  int64_t width = 0;    ///< features of the whole
  Range features = {};  ///< of this rank
};

/// The mask of a dropout, 0 or 1 / (1 - p), for a tensor of this shape. Each row is a sample, of
/// which the rank has these elements.
at::Tensor dropout_mask(const LayerImpl& layer, const Where* where, double probability,
                        at::IntArrayRef shape, const DropoutElements& elements,
                        const at::TensorOptions& options);

/// Rows of which each belongs to another token.
struct DroppedTokens {
  at::Tensor samples;   ///< of each row
  at::Tensor spots;     ///< its place in the sample, which no other row of the whole has
  int64_t width = 0;    ///< features of the whole
  Range features = {};  ///< of this rank
};

/// The mask of a dropout for [tokens, features], wherever the tokens are: whether an element is
/// dropped is a function of (seed, layer name, step, sample, spot, feature).
at::Tensor token_dropout_mask(const LayerImpl& layer, int64_t step, double probability,
                              const DroppedTokens& tokens, const at::TensorOptions& options);

}  // namespace trireme::nn
