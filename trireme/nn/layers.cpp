#include "trireme/nn/layers.h"

#include <torch/autograd.h>

#include <cmath>

#include "trireme/comm/dtype.h"
#include "trireme/core/error.h"
#include "trireme/cuda/embedding.h"
#include "trireme/cuda/norm.h"
#include "trireme/nn/dropout.h"
#include "trireme/nn/matmul.h"

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
    const at::Tensor& dy = gradients[0];
    const at::Tensor index = context->get_saved_variables()[0];
    const int64_t rows = context->saved_data["rows"].toInt();
    if (dy.is_cuda())
      return {cuda::embedding_gradient(dy.reshape({-1, dy.size(-1)}).contiguous(), index, rows),
              {}};
    const at::Tensor sums = at::embedding_dense_backward(
        dy.to(at::kFloat), index, rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
    return {sums.to(context->saved_data["dtype"].toScalarType()), {}};
  }
};

/// Layer norm by our own kernels. It returns {normalized, x, mean, rstd}; its backward adds the
/// gradient of the second to that of the first in the same pass. The statistics have none.
struct GpuNorm : ag::Function<GpuNorm> {
  static constexpr const char* kNoSecondDerivative =
      "norm: a gradient of a gradient (create_graph) is not there in 16 bits on a GPU; use "
      "precision.compute = \"float32\"";

  static ag::variable_list forward(ag::AutogradContext* context, const at::Tensor& x,
                                   const at::Tensor& weight, const at::Tensor& bias,
                                   double epsilon) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor in = x.contiguous(), y = at::empty_like(in);
    const auto [mean, rstd] = cuda::norm(rows_of(y), rows_of(in), weight, bias, epsilon);
    context->save_for_backward({in, weight, mean, rstd});
    context->mark_non_differentiable({mean, rstd});
    context->set_materialize_grads(false);
    return {y, x, mean, rstd};
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), kNoSecondDerivative);
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    if (!gradients[0].defined()) return {gradients[1], {}, {}, {}};
    const at::Tensor also =
        gradients[1].defined() ? rows_of(gradients[1]).contiguous() : at::Tensor();
    auto all = cuda::norm_backward(rows_of(gradients[0]).contiguous(), rows_of(x), saved[1],
                                   {saved[2], saved[3]}, also);
    return {all.x.view(x.sizes()), all.weight, all.bias, {}};
  }

  /// The normalized tensor again, from {x, weight, bias, mean, rstd}.
  static at::Tensor again(const std::vector<at::Tensor>& from) {
    TORCH_CHECK(!at::GradMode::is_enabled(), kNoSecondDerivative);
    const at::Tensor in = from[0].contiguous(), y = at::empty_like(in);
    cuda::norm_again(rows_of(y), rows_of(in), from[1], from[2], {from[3], from[4]});
    return y;
  }
};

/// Layer norm by libtorch, in the dtype of x.
at::Tensor normalize(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     double epsilon) {
  const auto dtype = x.scalar_type();
  return at::layer_norm(x, {x.size(-1)}, weight.to(dtype), bias.to(dtype), epsilon);
}

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
  // On a GPU the host would have to wait for the answer: there, such an index gives nan.
  if (index.is_cpu() && !known.all().item<bool>())
    throw Error(fmt::format("embedding '{}': {} is not one of its {} rows", full_name(),
                            index.masked_select(known.logical_not())[0].item<int64_t>(), rows_));
  // Rows of other ranks become zeros here; `leave` adds up the outputs of all ranks.
  const Range mine = even_range(rows_, region()->size(), region()->group().rank());
  const at::Tensor outside = at::logical_or(index < mine.begin, index >= mine.begin + mine.count);
  const at::Tensor found =
      as_activation(look_up(weight, (index - mine.begin).masked_fill_(outside, 0)), *this);
  at::Tensor rows = found.masked_fill(outside.unsqueeze(-1), 0);
  if (!index.is_cpu())
    rows = rows.masked_fill(known.logical_not().unsqueeze(-1),
                            std::numeric_limits<double>::quiet_NaN());
  return region()->leave(indices.with(rows));
}

LayerNormImpl::LayerNormImpl(int64_t width, Options options)
    : weight(parameter("weight", {width}, InitRule::ones())),
      bias(parameter("bias", {width}, InitRule::zeros())),
      options_(options) {}

Flow LayerNormImpl::compute(const Flow& in) {
  const at::Tensor& x = in.x();
  const bool same =
      weight.scalar_type() == x.scalar_type() && bias.scalar_type() == x.scalar_type();
  if (same && is_half(x) && cuda::can_normalize(x)) {
    const ag::variable_list all = GpuNorm::apply(x, weight, bias, options_.epsilon);
    Flow out = in.with(all[0]);
    if (options_.passes_input) out.tensors.push_back(all[1]);
    let_remake(out, {x, all[2], all[3]}, GpuNorm::again);
    return out;
  }
  // The CPU's kernel for 16 bits adds up the gradients of weight and bias in 16 bits.
  const at::Tensor wide = x.to(at::promote_types(x.scalar_type(), at::kFloat));
  const auto make = [epsilon = options_.epsilon,
                     dtype = x.scalar_type()](const std::vector<at::Tensor>& from) {
    return normalize(from[0], from[1], from[2], epsilon).to(dtype);
  };
  Flow out = in.with(make({wide, weight, bias}));
  if (options_.passes_input) out.tensors.push_back(x);
  let_remake(out, {wide}, make);
  return out;
}

/// Says how to compute the output again, from the input, the weights and then the statistics.
void LayerNormImpl::let_remake(Flow& out, std::vector<at::Tensor> from,
                               decltype(Remake::make) make) const {
  if (!remakes_ || !at::GradMode::is_enabled()) return;
  const bool copies = *remakes_ == WeightsLater::MayGo;
  const at::Tensor weights[] = {copies ? weight.clone() : weight, copies ? bias.clone() : bias};
  from.insert(from.begin() + 1, std::begin(weights), std::end(weights));
  out.remake =
      std::make_shared<const Remake>(Remake{.from = std::move(from), .make = std::move(make)});
}

CausalAttentionImpl::CausalAttentionImpl(const Options& options) : options_(options) {
  core::check(options.heads > 0 && options.kv_heads > 0 && options.heads % options.kv_heads == 0 &&
                  (options.head > 0 || options.width % options.heads == 0),
              "attention: width {} must be a multiple of heads {}, and heads of kv_heads {}",
              options.width, options.heads, options.kv_heads);
  if (options_.head == 0) options_.head = options.width / options.heads;
  const int64_t head = options_.head, width = options.heads * head;
  const int64_t kv_width = options.kv_heads * head;
  // The query heads of one kv head stay together. If there are more ranks than kv heads, several
  // ranks hold copies of one.
  const Section q{
      .size = width, .copies = Section::kAsNeeded, .grain = width / options.kv_heads, .fine = head};
  const Section kv{.size = kv_width, .copies = Section::kAsNeeded, .grain = head};
  in_ =
      register_module(options.in_name, Linear(options.width, width + 2 * kv_width,
                                              LinearImpl::Options{.bias = options.in_bias,
                                                                  .deviation = options.in_deviation,
                                                                  .out_sections = {q, kv, kv}}));
  out_ = register_module(options.out_name,
                         Linear(width, options.width,
                                LinearImpl::Options{.bias = options.out_bias,
                                                    .deviation = options.out_deviation,
                                                    .in_sections = {q}}));
}

Flow CausalAttentionImpl::compute(const Flow& in) {
  const Flow qkv = in_->forward(in.first());
  std::vector<at::Tensor> tensors{attend(qkv)};
  if (in.tensors.size() > 1) tensors.push_back(in.tensors[1]);
  return out_->forward(Flow(std::move(tensors), qkv.where));
}

/// Attention over the heads of this rank.
at::Tensor CausalAttentionImpl::attend(const Flow& qkv) const {
  const auto parts = in_->out_parts();
  const int64_t head = options_.head;
  const int64_t heads = parts[0].count / head, kv_heads = parts[1].count / head;
  if (qkv.x().numel() == 0)  // the fused kernel divides by the number of rows
    return qkv.x().narrow(2, 0, parts[0].count);
  const int64_t begin = qkv.where != nullptr ? qkv.where->seq_begin : 0;
  // The projection has all positions, also where those between the layers are cut, and the Flow
  // says where they begin.
  const bool moves = qkv.where != nullptr && qkv.where->moving.defined();
  core::check(!moves || cache_ != nullptr, "attention at a moving position needs a cache");
  std::optional<cuda::RotaryHeads> rotary;
  if (options_.rotary != nullptr)
    rotary = moves ? options_.rotary->heads_at(qkv.where->moving, cache_->capacity(), qkv.x(),
                                               heads, kv_heads)
                   : options_.rotary->heads(qkv.x(), begin, heads, kv_heads);
  const bool plain = options_.dropout == 0 || !is_training();
  if (plain && cache_ == nullptr)
    return causal_attention(qkv.x(), heads, kv_heads, rotary ? &*rotary : nullptr, options_.sees);
  const at::Tensor placed = rotary ? turned(qkv.x(), *rotary) : qkv.x();
  const QueryKeyValue all = parts_of(placed, heads, kv_heads);
  // The cache keeps keys that are turned, and never turns them again.
  if (cache_ != nullptr)
    return moves ? cache_->attend_at(qkv.where->moving, all) : cache_->attend(all, begin);
  return with_dropout(all, qkv.where.get(), parts[0].begin / head);
}

// The fused kernel cannot apply our mask, so with dropout the scores [B, H, T, T] are computed in
// full. Their "positions" are the heads: head h of a sample owns the elements [h T T, (h + 1) T T).
at::Tensor CausalAttentionImpl::with_dropout(const QueryKeyValue& parts, const Where* where,
                                             int64_t first_head) const {
  const auto& [q, k, v] = parts;
  const int64_t T = q.size(2), repeat = q.size(1) / k.size(1);
  const auto keys = repeat != 1 ? k.repeat_interleave(repeat, 1) : k;
  const auto values = repeat != 1 ? v.repeat_interleave(repeat, 1) : v;
  // Divided before the product, which could overflow in float16.
  auto scores = at::matmul(q / std::sqrt(double(q.size(3))), keys.transpose(-2, -1));
  if (options_.sees == Sees::Past)
    scores = scores.masked_fill(at::ones({T, T}, q.options().dtype(at::kBool)).triu(1),
                                -std::numeric_limits<double>::infinity());
  const auto wide = at::promote_types(q.scalar_type(), at::kFloat);
  const auto chances = at::softmax(scores, -1, wide).to(q.scalar_type());
  const DropoutElements elements{
      .first_position = first_head, .width = T * T, .features = {0, T * T}};
  const auto mask =
      dropout_mask(*this, where, options_.dropout, chances.sizes(), elements, q.options());
  return at::matmul(chances * mask, values).transpose(1, 2).reshape({q.size(0), T, -1});
}

}  // namespace trireme::nn
