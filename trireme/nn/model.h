#pragma once

#include "trireme/nn/layer.h"
#include "trireme/nn/loss.h"

namespace trireme::nn {

/// A layer that can be trained: it has a loss. A model takes no part in communication; whatever
/// cuts it attaches from outside.
class ModelImpl : public LayerImpl {
 public:
  virtual Loss loss(const Flow& inputs, const at::Tensor& targets) = 0;

  /// About how many numbers one row keeps for backward, without recomputation.
  virtual int64_t activations_per_row() const { return 0; }

  /// What `memory.recompute` computes again: "block" these, "selective" those.
  virtual std::vector<std::shared_ptr<LayerImpl>> blocks() const { return {}; }
  virtual std::vector<std::shared_ptr<LayerImpl>> attentions() const { return {}; }
};

}  // namespace trireme::nn
