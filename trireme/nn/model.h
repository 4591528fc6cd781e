#pragma once

#include "trireme/nn/chain.h"

namespace trireme::nn {

/// What the memory for activations depends on, besides the model.
struct Batching {
  int64_t rows = 1;          ///< of a micro-batch
  bool accumulates = false;  ///< a step has several micro-batches
  int64_t item_bytes = 4;    ///< of an element
  int tensor = 1;            ///< degree of the tensor axis
  int context = 1;           ///< degree of the context axis
  bool documents = false;    ///< attention stops at their borders
  c10::DeviceType device = c10::DeviceType::CPU;
  /// For a pipeline, where a rank has some of the layers and several micro-batches in flight: of
  /// how many layers it keeps activations (micro-batches x layers), and of how many micro-batches
  /// it keeps the head's. Below 0: all layers, one micro-batch.
  double layers = -1;
  double heads = 1;
  enum class Recompute : uint8_t { None, Block, Selective, Cheap } recompute = Recompute::None;
};

/// A micro-batch to train on.
struct MicroBatch {
  Flow inputs;
  at::Tensor targets;
};

/// A layer with a loss, so that it can be trained. A model does not communicate: what cuts or
/// replicates it attaches from outside.
class ModelImpl : public LayerImpl {
 public:
  /// By default the loss of the chain.
  virtual Loss loss(const Flow& inputs, const at::Tensor& targets);

  /// The model as a chain of links that a pipeline can cut. Empty: a pipeline cannot run it.
  virtual Chain chain() { return {}; }

  /// A micro-batch of this many rows with arbitrary values, to measure the cost of links.
  virtual std::optional<MicroBatch> example(int64_t /*rows*/) const { return std::nullopt; }

  /// The peak bytes of forward and backward of one micro-batch, without the weights and the
  /// gradients that are kept. 0: unknown.
  virtual int64_t activation_bytes(const Batching& /*of*/) const { return 0; }

  /// Backward recomputes the links of the chain in segments: see sqrt_segments.
  void recompute_segments() { recomputes_segments_ = true; }
  bool recomputes_segments() const { return recomputes_segments_; }

  /// The layers that `memory.recompute` recomputes: "block" the first, "selective" the second.
  virtual std::vector<std::shared_ptr<LayerImpl>> blocks() const { return {}; }
  virtual std::vector<std::shared_ptr<LayerImpl>> attentions() const { return {}; }

 private:
  bool recomputes_segments_ = false;
};

/// Tokens [rows, positions] that count up, and as targets the tokens after them.
MicroBatch counting_tokens(int64_t rows, int64_t positions, int64_t vocab);
/// The same at these positions of the sequence.
MicroBatch counting_tokens(int64_t rows, const Positions& positions, int64_t vocab);

/// Images of this shape, [rows, channels, height, width], whose elements repeat, and a class for
/// each.
MicroBatch counting_images(const std::vector<int64_t>& shape, int64_t classes);

}  // namespace trireme::nn
