#pragma once

#include "trireme/nn/context_region.h"
#include "trireme/nn/model.h"
#include "trireme/nn/moe.h"
#include "trireme/nn/tensor_region.h"

namespace trireme::models {

/// The sizes of a decoder: token embedding, blocks of attention and mlp, head. All are given.
struct DecoderShape {
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head = 0, ffn = 0, seq = 0, vocab = 0;
  double dropout = 0, attention_dropout = 0;
  bool tie = true;
  bool gated = false;  ///< RMS norms and SwiGLU, instead of layer norms and GELU
  /// Of a mixture of experts: to how many a token goes; `ffn` is then that of all of them together.
  int64_t top_k = 0;
  int64_t experts = 1;  ///< how many there are
  nn::Sequence sequence = nn::Sequence::Cut;
  nn::ContextKind context = nn::ContextKind::Ring;
};

/// The width of all experts that see one token.
inline int64_t mixture_ffn(const nn::MoeImpl::Options& moe) {
  return (moe.router.top_k + moe.shared) * moe.experts.ffn;
}

/// The memory of a decoder's activations, for --check: the peak of the tensors that exist at the
/// same time. Small ones are left out.
int64_t decoder_activation_bytes(const DecoderShape& shape, const nn::Batching& of);

}  // namespace trireme::models
