#pragma once

#include <optional>

#include "trireme/mesh/mesh.h"
#include "trireme/nn/dropout.h"
#include "trireme/nn/head.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/model.h"
#include "trireme/nn/moe.h"

namespace trireme::models {

struct GptOptions {
  int64_t layers = 4, hidden = 128, heads = 4;
  int64_t kv_heads = 0;  ///< 0: heads
  int64_t ffn = 0;       ///< 0: 4 x hidden
  int64_t seq = 128, vocab = 256;
  double dropout = 0, attention_dropout = 0;
  bool tie = true;                            ///< the head's weight is the token embedding's
  nn::Sequence sequence = nn::Sequence::Cut;  ///< between the layers that the tensor axis cuts
  nn::ContextKind context = nn::ContextKind::Ring;  ///< attention over the context axis
  // What other models that are made of these blocks do differently.
  nn::Sees sees = nn::Sees::Past;
  double epsilon = 1e-5;    ///< of norms
  bool exact_gelu = false;  ///< instead of the tanh form
  /// A mixture of experts in place of each block's mlp; its width is `hidden`.
  std::optional<nn::MoeImpl::Options> moe = {};
};

/// ModelImpl::activation_bytes of a model that is made of these blocks.
int64_t gpt_activation_bytes(const GptOptions& options, const nn::Batching& of);

/// ln_1 -> attention -> + -> ln_2 -> mlp -> +, with dropout before each sum. The mlp may be a
/// mixture of experts.
class GptBlockImpl : public nn::LayerImpl {
 public:
  explicit GptBlockImpl(const GptOptions& options);
  nn::CausalAttention attn{nullptr};

  /// The block as one link of a chain, with three finer links inside.
  nn::Link link(const std::string& name);

 protected:
  nn::Flow compute(const nn::Flow& in) override;

 private:
  nn::Flow attend(const nn::Flow& in);
  nn::Flow widen(const nn::Flow& in);  ///< returns {gelu, stream}, or on a GPU {gelu, z, stream}
  nn::Flow widen_plainly(const nn::Flow& in);
  nn::Flow narrow(const nn::Flow& in);  ///< takes either
  nn::Flow mix(const nn::Flow& in);     ///< both, of a mixture

  double dropout_;
  bool exact_gelu_;

  nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  nn::Linear c_fc{nullptr}, c_proj{nullptr};
  nn::Moe moe{nullptr};
  nn::Dropout drop_1{nullptr}, drop_2{nullptr};
};
TORCH_MODULE(GptBlock);

/// GPT-2 (Radford et al. 2019): tanh GELU, learned positions, pre-norm, tied head. Initial weights
/// are normal with deviation 0.02 (positions 0.01; projections into the residual stream are divided
/// by sqrt(2 x layers)), biases 0. Parameters have the names of the published checkpoints. With
/// `moe` each block has a mixture of experts in place of its mlp, whose experts the expert axis
/// deals to ranks.
class GptImpl : public nn::ModelImpl {
 public:
  /// The tensor axis cuts the vocabulary, the heads and the width of the mlp. Throws ConfigError if
  /// the mesh has an axis that cannot cut this model yet.
  GptImpl(GptOptions options, const Mesh& mesh);

  nn::Chain chain() override;
  std::optional<nn::MicroBatch> example(int64_t rows) const override;
  int64_t activation_bytes(const nn::Batching& of) const override;
  std::vector<std::shared_ptr<nn::LayerImpl>> blocks() const override;
  std::vector<std::shared_ptr<nn::LayerImpl>> attentions() const override;

 protected:
  /// Logits [rows, positions, vocab] of the next tokens. The loss does not need them.
  nn::Flow compute(const nn::Flow& tokens) override;

 private:
  nn::Flow embed(const nn::Flow& tokens);

  GptOptions options_;
  Positions positions_;  // of a full sequence, that this rank has
  nn::Embedding wte{nullptr}, wpe{nullptr};
  nn::Dropout drop{nullptr};
  std::vector<GptBlock> h;
  nn::LayerNorm ln_f{nullptr};
  nn::Head lm_head{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace trireme::models
