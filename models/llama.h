#pragma once

#include <optional>

#include "trireme/mesh/mesh.h"
#include "trireme/nn/dropout.h"
#include "trireme/nn/head.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/model.h"
#include "trireme/nn/moe.h"
#include "trireme/nn/rms_norm.h"
#include "trireme/nn/swiglu.h"

namespace trireme::models {

struct LlamaOptions {
  int64_t layers = 4, hidden = 128, heads = 4;
  int64_t kv_heads = 0;  ///< 0: heads
  int64_t head_dim = 0;  ///< 0: hidden / heads
  int64_t ffn = 0;       ///< 0: 4 x hidden
  int64_t seq = 128, vocab = 256;
  double norm_eps = 1e-5;
  bool qkv_bias = false;          ///< as Qwen has
  nn::RotaryOptions rotary = {};  ///< its head is the model's; trained_on 0: seq
  double dropout = 0, attention_dropout = 0;
  bool tie = true;                            ///< the head's weight is the token embedding's
  nn::Sequence sequence = nn::Sequence::Cut;  ///< between the layers that the tensor axis cuts
  nn::ContextKind context = nn::ContextKind::Ring;  ///< attention over the context axis
  /// A mixture of SwiGLU experts in place of each block's mlp; its width is `hidden`.
  std::optional<nn::MoeImpl::Options> moe = {};
};

/// norm_1 -> attention -> + -> norm_2 -> SwiGLU mlp -> +, with dropout before each sum.
class LlamaBlockImpl : public nn::LayerImpl {
 public:
  /// `rotary` is that of all blocks.
  LlamaBlockImpl(const LlamaOptions& options, std::shared_ptr<const nn::Rotary> rotary);
  nn::CausalAttention attn{nullptr};

  /// The block as one link of a chain, with three finer links inside.
  nn::Link link(const std::string& name);

 protected:
  nn::Flow compute(const nn::Flow& in) override;

 private:
  nn::Flow attend(const nn::Flow& in);
  nn::Flow widen(const nn::Flow& in);  ///< returns {gated, stream}
  nn::Flow narrow(const nn::Flow& in);
  nn::Flow mix(const nn::Flow& in);  ///< both, of a mixture

  double dropout_;

  nn::RmsNorm norm_1{nullptr}, norm_2{nullptr};
  nn::Linear gate_up{nullptr}, down{nullptr};
  nn::SwiGlu gate{nullptr};
  nn::Moe moe{nullptr};
  nn::Dropout drop_1{nullptr}, drop_2{nullptr};
};
TORCH_MODULE(LlamaBlock);

/// Llama (Touvron et al. 2023): RMS norms, rotary positions, SwiGLU, groups of query heads that
/// share keys and values, and no biases; with `qkv_bias` it is Qwen2, with `moe` Mixtral (Jiang et
/// al. 2024). Initial weights are normal with deviation 0.02 (projections into the residual stream
/// are divided by sqrt(2 x layers)).
class LlamaImpl : public nn::ModelImpl {
 public:
  /// The tensor axis cuts the vocabulary, the heads and the width of the mlp. Throws ConfigError if
  /// the mesh has an axis that cannot cut this model yet.
  LlamaImpl(LlamaOptions options, const Mesh& mesh);

  nn::Chain chain() override;
  std::optional<nn::MicroBatch> example(int64_t rows) const override;
  int64_t activation_bytes(const nn::Batching& of) const override;
  std::vector<std::shared_ptr<nn::LayerImpl>> blocks() const override;
  std::vector<std::shared_ptr<nn::LayerImpl>> attentions() const override;

 protected:
  /// Logits [rows, positions, vocab] of the next tokens. The loss does not need them.
  nn::Flow compute(const nn::Flow& tokens) override;

 private:
  nn::Flow embedded(const nn::Flow& tokens);

  LlamaOptions options_;
  Positions positions_;  // of a full sequence, that this rank has
  nn::Embedding embed{nullptr};
  nn::Dropout drop{nullptr};
  std::vector<LlamaBlock> layers;
  nn::RmsNorm norm{nullptr};
  nn::Head lm_head{nullptr};
};
TORCH_MODULE(Llama);

}  // namespace trireme::models
