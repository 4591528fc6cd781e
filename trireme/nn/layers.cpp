#include "trireme/nn/layers.h"

#include <cmath>

#include "trireme/core/error.h"
#include "trireme/nn/matmul.h"

namespace trireme::nn {

namespace {

InitRule linear_rule(int64_t in, double deviation) {
  return deviation > 0 ? InitRule::normal(deviation)
                       : InitRule::uniform(1 / std::sqrt(static_cast<double>(in)));
}

}  // namespace

LinearImpl::LinearImpl(int64_t in, int64_t out) : LinearImpl(in, out, Options{}) {}

LinearImpl::LinearImpl(int64_t in, int64_t out, Options options)
    : weight(parameter("weight", {out, in}, linear_rule(in, options.deviation))) {
  if (options.bias)
    bias = parameter("bias", {out}, options.deviation > 0 ? InitRule::zeros() : linear_rule(in, 0));
}

at::Tensor LinearImpl::compute(const at::Tensor& x, const Where*) {
  return linear(x, weight, bias);
}

EmbeddingImpl::EmbeddingImpl(int64_t rows, int64_t width, double deviation)
    : weight(parameter("weight", {rows, width}, InitRule::normal(deviation))) {}

at::Tensor EmbeddingImpl::compute(const at::Tensor& indices, const Where*) {
  return at::embedding(weight, indices);
}

LayerNormImpl::LayerNormImpl(int64_t width, double epsilon)
    : weight(parameter("weight", {width}, InitRule::ones())),
      bias(parameter("bias", {width}, InitRule::zeros())),
      epsilon_(epsilon) {}

at::Tensor LayerNormImpl::compute(const at::Tensor& x, const Where*) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, epsilon_);
}

CausalAttentionImpl::CausalAttentionImpl(const Options& options) : options_(options) {
  core::check(options.heads > 0 && options.kv_heads > 0 && options.width % options.heads == 0 &&
                  options.heads % options.kv_heads == 0,
              "attention: width {} must be a multiple of heads {}, and heads of kv_heads {}",
              options.width, options.heads, options.kv_heads);
  const int64_t head = options.width / options.heads;
  c_attn =
      register_module("c_attn", Linear(options.width, options.width + 2 * options.kv_heads * head,
                                       LinearImpl::Options{.deviation = options.in_deviation}));
  c_proj =
      register_module("c_proj", Linear(options.width, options.width,
                                       LinearImpl::Options{.deviation = options.out_deviation}));
}

// B rows, T positions, H heads, K kv heads, D elements of a head.
at::Tensor CausalAttentionImpl::compute(const at::Tensor& x_BTC, const Where* where) {
  const int64_t B = x_BTC.size(0), T = x_BTC.size(1), D = options_.width / options_.heads;
  const int64_t q_width = options_.width, kv_width = options_.kv_heads * D;
  const auto qkv = c_attn->forward(x_BTC);
  // Split, not three slices: its backward is one copy.
  const auto parts = qkv.split_with_sizes({q_width, kv_width, kv_width}, 2);
  const auto heads = [&](const at::Tensor& part) {
    return part.view({B, T, part.size(2) / D, D}).transpose(1, 2);
  };
  if (x_BTC.numel() == 0)  // the fused kernel divides by the number of rows
    return c_proj->forward(parts[0]);
  const auto y_BHTD = attend(heads(parts[0]), heads(parts[1]), heads(parts[2]), where);
  return c_proj->forward(y_BHTD.transpose(1, 2).reshape({B, T, q_width}));
}

at::Tensor CausalAttentionImpl::attend(const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const Where* where) const {
  const bool grouped = options_.kv_heads != options_.heads;
  if (options_.dropout == 0 || !is_training())
    return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true, std::nullopt,
                                            grouped);
  const int64_t repeat = options_.heads / options_.kv_heads, T = q.size(2);
  const auto keys = grouped ? k.repeat_interleave(repeat, 1) : k;
  const auto values = grouped ? v.repeat_interleave(repeat, 1) : v;
  const auto future = at::ones({T, T}, q.options().dtype(at::kBool)).triu(1);
  const auto scores = at::matmul(q, keys.transpose(-2, -1)) / std::sqrt(double(q.size(3)));
  const auto chances =
      at::softmax(scores.masked_fill(future, -std::numeric_limits<double>::infinity()), -1);
  const auto mask = dropout_mask(*this, where, options_.dropout, chances.sizes(), 0, q.options());
  return at::matmul(chances * mask, values);
}

}  // namespace trireme::nn
