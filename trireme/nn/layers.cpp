#include "trireme/nn/layers.h"

#include <torch/autograd.h>

#include "trireme/comm/dtype.h"
#include "trireme/core/error.h"
#include "trireme/cuda/embedding.h"
#include "trireme/cuda/norm.h"
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

at::Tensor EmbeddingImpl::rows(const std::vector<Range>& ranges) {
  for (const auto& [begin, count] : ranges)
    core::check(begin >= 0 && begin + count <= weight.size(0),
                "embedding '{}': it has {} rows, not {}", full_name(), weight.size(0),
                begin + count);
  // A copy: the table may have no memory any more when the rows are used.
  const auto copy = [&](const Flow& in) {
    std::vector<at::Tensor> parts;
    for (const auto& [begin, count] : ranges) parts.push_back(weight.narrow(0, begin, count));
    const at::Tensor all = parts.empty()       ? weight.narrow(0, 0, 0).clone()
                           : parts.size() == 1 ? parts[0].clone()
                                               : at::cat(parts);
    return in.with(as_activation(all, *this));
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

}  // namespace trireme::nn
