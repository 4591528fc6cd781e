#pragma once

#include "trireme/nn/chain.h"

namespace trireme::nn {

/// What the memory of activations depends on, besides the model.
struct Batching {
  int64_t rows = 1;        ///< of a micro-batch
  int64_t item_bytes = 4;  ///< of a number
  int tensor = 1;          ///< degree of the tensor axis
  c10::DeviceType device = c10::DeviceType::CPU;
  /// Of a rank that has part of the model, for several micro-batches at a time: how many layers'
  /// activations it keeps (micro-batches x layers), and how many micro-batches of the head's.
  /// Below 0: all layers, once.
  double layers = -1;
  double heads = 1;
  enum class Recompute : uint8_t { None, Block, Selective } recompute = Recompute::None;
};

/// A micro-batch, as a model is trained on it.
struct MicroBatch {
  Flow inputs;
  at::Tensor targets;
};

/// A layer that can be trained: it has a loss. A model takes no part in communication; whatever
/// cuts it attaches from outside.
class ModelImpl : public LayerImpl {
 public:
  /// Unless it is written otherwise, what the chain gives.
  virtual Loss loss(const Flow& inputs, const at::Tensor& targets);

  /// The same as links, for pipelines to cut between. Empty: it cannot be cut.
  virtual Chain chain() { return {}; }

  /// A micro-batch of so many rows, of any values, for those who measure what links take.
  virtual std::optional<MicroBatch> example(int64_t /*rows*/) const { return std::nullopt; }

  /// The bytes that forward and backward of one micro-batch take at their peak, besides weights and
  /// the gradients that are kept. 0: nobody knows.
  virtual int64_t activation_bytes(const Batching& /*of*/) const { return 0; }

  /// What `memory.recompute` computes again: "block" these, "selective" those.
  virtual std::vector<std::shared_ptr<LayerImpl>> blocks() const { return {}; }
  virtual std::vector<std::shared_ptr<LayerImpl>> attentions() const { return {}; }
};

/// Tokens that count up, [rows, positions], and those that come next.
MicroBatch counting_tokens(int64_t rows, int64_t positions, int64_t vocab);

}  // namespace trireme::nn
