#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn {

// Attention to some of the keys that a query sees, and how such results are put together. B rows, H
// heads, K kv heads, Q queries, T keys, D elements of a head.

/// softmax(q k^T / sqrt(D)) v over the keys of a block, and the logarithm of what each row of the
/// softmax was divided by.
struct BlockAttention {
  at::Tensor out;  ///< [B, H, Q, D]
  at::Tensor lse;  ///< [B, H, Q], float32 or wider; -inf where a query sees no key of the block
};

/// What a query sees of a block.
struct BlockMask {
  bool causal = false;  ///< query i sees the keys 0 ... i
  at::Tensor hidden{};  ///< or, bool [B or 1, 1, Q, T]: what it does not see; undefined: nothing
  at::Tensor keep{};    ///< dropout of the weights, 0 or 1 / (1 - p), [B, H, Q, T]; undefined: none
};

/// By libtorch's fused attention where that returns the log-sum-exp: on the CPU, and on a GPU in 16
/// bits without masks. Elsewhere the scores [B, H, Q, T] are computed in full. Not differentiable.
BlockAttention block_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const BlockMask& mask);

struct BlockGradients {
  at::Tensor q, k, v;  ///< those of k and v over the K kv heads
};

/// The gradients that a block contributes. `whole` is the attention over all blocks: with its
/// log-sum-exp, the weights of the block are those that its keys have among all keys, so that the
/// contributions of the blocks add up to the gradient (as in FlashAttention, Dao et al. 2022).
BlockGradients block_gradients(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const BlockAttention& whole,
                               const BlockMask& mask);

/// Puts another block's result into `to`, whose tensors are written:
///
///   lse = log(exp(a.lse) + exp(b.lse))      out = a.out exp(a.lse - lse) + b.out exp(b.lse - lse)
///
/// Each query of `to` must have seen a key already.
void merge(BlockAttention& to, const BlockAttention& more);

}  // namespace trireme::nn
