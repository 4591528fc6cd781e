#include "trireme/nn/attention_block.h"

#include <torch/types.h>

#include <cmath>
#include <limits>

#include "trireme/comm/dtype.h"

namespace trireme::nn {

namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

/// As many heads as there are queries for: each kv head serves several.
at::Tensor for_each_query_head(const at::Tensor& kv, int64_t heads) {
  return kv.size(1) == heads ? kv : kv.repeat_interleave(heads / kv.size(1), 1);
}

/// The gradient of a kv head is the sum of those of the heads that it serves.
at::Tensor over_kv_heads(const at::Tensor& gradient, int64_t kv_heads) {
  if (gradient.size(1) == kv_heads) return gradient;
  return gradient.unflatten(1, {kv_heads, gradient.size(1) / kv_heads}).sum(2);
}

at::ScalarType wide_dtype(const at::Tensor& x) {
  return at::promote_types(x.scalar_type(), at::kFloat);
}

bool is_fused_on_cpu(const at::Tensor& q, const BlockMask& mask) {
  return q.is_cpu() && !mask.keep.defined();
}

bool is_fused_on_gpu(const at::Tensor& q, const BlockMask& mask) {
  constexpr int64_t kLargestHead = 256;
  return q.is_cuda() && comm::is_half(q.scalar_type()) && !mask.keep.defined() &&
         !mask.hidden.defined() && q.size(3) % 8 == 0 && q.size(3) <= kLargestHead;
}

/// What the fused kernel adds to the scores.
std::optional<at::Tensor> added(const BlockMask& mask, const at::Tensor& q) {
  if (!mask.hidden.defined()) return std::nullopt;
  return at::zeros_like(mask.hidden, q.options()).masked_fill_(mask.hidden, kHidden);
}

/// q k^T / sqrt(D), -inf where a query does not see a key.
at::Tensor scores_of(const at::Tensor& q, const at::Tensor& k, const BlockMask& mask) {
  at::Tensor scores = at::matmul(q / std::sqrt(static_cast<double>(q.size(3))), k.mT());
  if (mask.hidden.defined()) scores.masked_fill_(mask.hidden, kHidden);
  if (mask.causal)
    scores.masked_fill_(at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).triu(1),
                        kHidden);
  return scores;
}

/// exp(scores - lse), 0 where a query sees nothing.
at::Tensor weights_of(const at::Tensor& scores, const at::Tensor& lse) {
  return at::exp(scores - lse.masked_fill(lse == kHidden, 0).unsqueeze(-1));
}

BlockAttention plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const BlockMask& mask) {
  const at::Tensor scores = scores_of(q, k, mask);
  const at::Tensor lse = at::logsumexp(scores, -1);
  at::Tensor weights = weights_of(scores, lse);
  if (mask.keep.defined()) weights *= mask.keep;
  return {at::matmul(weights, v), lse};
}

BlockGradients plain_gradients(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const BlockAttention& whole,
                               const BlockMask& mask) {
  const at::Tensor weights = weights_of(scores_of(q, k, mask), whole.lse);
  at::Tensor dweights = at::matmul(dy, v.mT());
  if (mask.keep.defined()) dweights *= mask.keep;
  const at::Tensor dv = at::matmul((mask.keep.defined() ? weights * mask.keep : weights).mT(), dy);
  // The softmax's gradient takes off what the sum over all keys changes.
  const at::Tensor dscores = weights * (dweights - (dy * whole.out).sum(-1, /*keepdim=*/true)) /
                             std::sqrt(static_cast<double>(q.size(3)));
  return {at::matmul(dscores, k), at::matmul(dscores.mT(), q), dv};
}

}  // namespace

BlockAttention block_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const BlockMask& mask) {
  const at::Tensor keys = for_each_query_head(k, q.size(1));
  const at::Tensor values = for_each_query_head(v, q.size(1));
  if (is_fused_on_cpu(q, mask)) {
    const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        q, keys, values, 0.0, mask.causal, added(mask, q));
    if (mask.hidden.defined()) {  // of rows that see nothing the kernel gives no -inf
      const at::Tensor blind = mask.hidden.all(-1);
      lse.masked_fill_(blind, kHidden);
      out.masked_fill_(blind.unsqueeze(-1), 0);
    }
    return {out, lse};
  }
  if (is_fused_on_gpu(q, mask)) {
    const auto all =
        at::_scaled_dot_product_flash_attention(q, keys, values, 0.0, mask.causal, false);
    return {std::get<0>(all), std::get<1>(all)};
  }
  const auto wide = wide_dtype(q);
  return plain_attention(q.to(wide), keys.to(wide), values.to(wide), mask);
}

BlockGradients block_gradients(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const BlockAttention& whole,
                               const BlockMask& mask) {
  const at::Tensor keys = for_each_query_head(k, q.size(1));
  const at::Tensor values = for_each_query_head(v, q.size(1));
  BlockGradients all;
  if (is_fused_on_cpu(q, mask)) {
    std::tie(all.q, all.k, all.v) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        dy, q, keys, values, whole.out, whole.lse, 0.0, mask.causal, added(mask, q));
  } else if (is_fused_on_gpu(q, mask)) {
    const at::Tensor no_random = at::empty({2}, q.options().dtype(at::kLong));  // no dropout
    std::tie(all.q, all.k, all.v) = at::_scaled_dot_product_flash_attention_backward(
        dy, q, keys, values, whole.out, whole.lse.contiguous(), {}, {}, q.size(2), keys.size(2),
        0.0, mask.causal, no_random, no_random);
  } else {
    const auto wide = wide_dtype(q);
    all = plain_gradients(dy.to(wide), q.to(wide), keys.to(wide), values.to(wide),
                          {whole.out.to(wide), whole.lse}, mask);
  }
  return {all.q, over_kv_heads(all.k, k.size(1)), over_kv_heads(all.v, k.size(1))};
}

void merge(BlockAttention& to, const BlockAttention& more) {
  const at::Tensor lse = at::logaddexp(to.lse, more.lse);
  to.out.mul_(at::exp(to.lse - lse).unsqueeze(-1));
  to.out.add_(more.out * at::exp(more.lse - lse).unsqueeze(-1));
  to.lse.copy_(lse);
}

}  // namespace trireme::nn
