#include "trireme/nn/layers.h"

#include <torch/autograd.h>

#include <cmath>

#include "trireme/comm/dtype.h"
#include "trireme/core/error.h"
#include "trireme/nn/dropout.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

bool is_half(const at::Tensor& x) {
  return comm::is_half(x.scalar_type());
}

/// Looks up rows of a 16-bit table. Its backward adds up the gradients of each row in float32 and
/// rounds once; torch's would round after every token.
struct HalfEmbedding : ag::Function<HalfEmbedding> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& weight,
                            const at::Tensor& index) {
    context->save_for_backward({index});
    context->saved_data["rows"] = weight.size(0);
    context->saved_data["dtype"] = weight.scalar_type();
    return at::embedding(weight, index);
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const at::Tensor sums = at::embedding_dense_backward(
        gradients[0].to(at::kFloat), context->get_saved_variables()[0],
        context->saved_data["rows"].toInt(), /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
    return {sums.to(context->saved_data["dtype"].toScalarType()), {}};
  }
};

at::Tensor look_up(const at::Tensor& weight, const at::Tensor& index) {
  return is_half(weight) ? HalfEmbedding::apply(weight, index) : at::embedding(weight, index);
}

/// What a table gives, in the dtype of the model.
at::Tensor as_activation(const at::Tensor& found, const LayerImpl& layer) {
  return found.to(layer.compute_dtype().value_or(found.scalar_type()));
}

}  // namespace

EmbeddingImpl::EmbeddingImpl(int64_t rows, int64_t width, double deviation)
    : weight(parameter("weight", {rows, width}, InitRule::normal(deviation))),
      rows_(rows),
      width_(width) {}

at::Tensor EmbeddingImpl::rows(int64_t begin, int64_t count) {
  core::check(begin >= 0 && begin + count <= weight.size(0),
              "embedding '{}': it has {} rows, not {}", full_name(), weight.size(0), begin + count);
  // A copy: the table may have no memory any more when the rows are used.
  const auto copy = [&](const Flow& in) {
    return in.with(as_activation(weight.narrow(0, begin, count).clone(), *this));
  };
  return with_weights(Flow(at::Tensor()), {.run = copy, .backward_reads_weights = false}).x();
}

Layouts EmbeddingImpl::layouts(Style style, Sequence sequence) const {
  if (style != Style::Vocabulary) return LayerImpl::layouts(style, sequence);
  return {{"weight", Layout({rows_, width_}, {{Axis::Tensor, 0}})}};
}

Flow EmbeddingImpl::compute(const Flow& indices) {
  const at::Tensor& index = indices.x();
  if (style() != Style::Vocabulary || region()->size() == 1)
    return indices.with(as_activation(look_up(weight, index), *this));
  const at::Tensor known = at::logical_and(index >= 0, index < rows_);
  if (!known.all().item<bool>())
    throw Error(fmt::format("embedding '{}': {} is not one of its {} rows", full_name(),
                            index.masked_select(known.logical_not())[0].item<int64_t>(), rows_));
  // Rows of other ranks become zeros here; `leave` adds up the outputs of all ranks.
  const Range mine = even_range(rows_, region()->size(), region()->group().rank());
  const at::Tensor outside = at::logical_or(index < mine.begin, index >= mine.begin + mine.count);
  const at::Tensor found =
      as_activation(look_up(weight, (index - mine.begin).masked_fill_(outside, 0)), *this);
  return region()->leave(indices.with(found.masked_fill(outside.unsqueeze(-1), 0)));
}

LayerNormImpl::LayerNormImpl(int64_t width, double epsilon)
    : weight(parameter("weight", {width}, InitRule::ones())),
      bias(parameter("bias", {width}, InitRule::zeros())),
      epsilon_(epsilon) {}

at::Tensor LayerNormImpl::compute(const at::Tensor& x, const Where*) {
  // In 16 bits a GPU's kernel computes in float32 by itself; the CPU's adds up the gradients of
  // weight and bias in 16 bits.
  const bool same =
      weight.scalar_type() == x.scalar_type() && bias.scalar_type() == x.scalar_type();
  if (same && (!is_half(x) || x.is_cuda()))
    return at::layer_norm(x, {x.size(-1)}, weight, bias, epsilon_);
  const auto wide = at::promote_types(x.scalar_type(), at::kFloat);
  return at::layer_norm(x.to(wide), {x.size(-1)}, weight.to(wide), bias.to(wide), epsilon_)
      .to(x.scalar_type());
}

CausalAttentionImpl::CausalAttentionImpl(const Options& options) : options_(options) {
  core::check(options.heads > 0 && options.kv_heads > 0 && options.width % options.heads == 0 &&
                  options.heads % options.kv_heads == 0,
              "attention: width {} must be a multiple of heads {}, and heads of kv_heads {}",
              options.width, options.heads, options.kv_heads);
  const int64_t head = options.width / options.heads, kv_width = options.kv_heads * head;
  // The query heads of one kv head stay together. If there are more ranks than kv heads, several
  // ranks hold copies of one.
  const Section q{.size = options.width,
                  .copies = Section::kAsNeeded,
                  .grain = options.width / options.kv_heads,
                  .fine = head};
  const Section kv{.size = kv_width, .copies = Section::kAsNeeded, .grain = head};
  c_attn = register_module("c_attn", Linear(options.width, options.width + 2 * kv_width,
                                            LinearImpl::Options{.deviation = options.in_deviation,
                                                                .out_sections = {q, kv, kv}}));
  c_proj = register_module("c_proj", Linear(options.width, options.width,
                                            LinearImpl::Options{.deviation = options.out_deviation,
                                                                .in_sections = {q}}));
}

// Sizes: B rows, T positions, H heads, K kv heads, D elements of a head. H and K count the heads of
// this rank only.
Flow CausalAttentionImpl::compute(const Flow& in) {
  const Flow qkv = c_attn->forward(in);
  const auto parts = c_attn->out_parts();
  const int64_t B = qkv.x().size(0), T = qkv.x().size(1), D = options_.width / options_.heads;
  // One split instead of three slices, because its backward is a single copy.
  const auto q_k_v = qkv.x().split_with_sizes({parts[0].count, parts[1].count, parts[2].count}, 2);
  if (qkv.x().numel() == 0)  // the fused kernel divides by the number of rows
    return c_proj->forward(qkv.with(q_k_v[0]));
  const auto heads = [&](const at::Tensor& part) {
    return part.view({B, T, part.size(2) / D, D}).transpose(1, 2);
  };
  const auto y_BHTD = attend(heads(q_k_v[0]), heads(q_k_v[1]), heads(q_k_v[2]), qkv.where.get(),
                             parts[0].begin / D);
  return c_proj->forward(qkv.with(y_BHTD.transpose(1, 2).reshape({B, T, parts[0].count})));
}

// softmax(q k^T / sqrt(D)) v for q [B, H, T, D], k and v [B, K, T, D]. The fused kernel cannot
// apply our mask, so with dropout the scores [B, H, T, T] are computed in full. Their "positions"
// are the heads: head h of a sample owns the elements [h T T, (h + 1) T T).
at::Tensor CausalAttentionImpl::attend(const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const Where* where,
                                       int64_t first_head) const {
  const int64_t T = q.size(2), repeat = q.size(1) / k.size(1);
  if (options_.dropout == 0 || !is_training())
    return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true, std::nullopt,
                                            repeat != 1);
  const auto keys = repeat != 1 ? k.repeat_interleave(repeat, 1) : k;
  const auto values = repeat != 1 ? v.repeat_interleave(repeat, 1) : v;
  const auto future = at::ones({T, T}, q.options().dtype(at::kBool)).triu(1);
  // Divided before the product, which could overflow in float16.
  const auto scores = at::matmul(q / std::sqrt(double(q.size(3))), keys.transpose(-2, -1));
  const auto wide = at::promote_types(q.scalar_type(), at::kFloat);
  const auto chances =
      at::softmax(scores.masked_fill(future, -std::numeric_limits<double>::infinity()), -1, wide)
          .to(q.scalar_type());
  const DropoutElements elements{
      .first_position = first_head, .width = T * T, .features = {0, T * T}};
  const auto mask =
      dropout_mask(*this, where, options_.dropout, chances.sizes(), elements, q.options());
  return at::matmul(chances * mask, values);
}

}  // namespace trireme::nn
