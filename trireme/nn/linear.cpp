#include "trireme/nn/linear.h"

#include <torch/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>

#include "trireme/nn/matmul.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

/// What the autograd graph keeps of the layer for backward.
struct LinearContext : torch::CustomClassHolder {
  Style style = Style::Whole;
  TensorRegionPtr region;
  int64_t positions = 0;
  bool has_bias = false;  // if false, autograd has no slot for its gradient
  at::ScalarType bias_dtype = at::kFloat;
  // Set if the gradients of the weights may be computed later: the queue, and the parameters.
  WeightQueuePtr queue;
  at::Tensor weight, bias;
};
using LinearContextPtr = c10::intrusive_ptr<LinearContext>;

at::Tensor rows_of(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

/// x W^T + b; the bias may have another dtype.
at::Tensor product_and_bias(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!bias.defined() || bias.scalar_type() == x.scalar_type()) return product(x, weight, bias);
  return product(x, weight).add_(bias);
}

at::Tensor bias_gradient(const LinearContext& layer, const at::Tensor& dy) {
  return rows_of(dy).sum(0, /*keepdim=*/false, layer.bias_dtype);
}

/// False if a weight has a hook: that must get its gradient from autograd.
bool may_defer(const LinearContext& layer) {
  const auto is_free = [](const at::Tensor& one) {
    return !one.defined() || ag::impl::hooks(one).empty();
  };
  return is_free(layer.weight) && is_free(layer.bias);
}

/// The backward for gradients that will be differentiated themselves: it uses differentiable
/// operations only.
ag::variable_list backward_in_graph(const LinearContext& layer, const at::Tensor& dy_own,
                                    const at::Tensor& x, const at::Tensor& weight,
                                    bool needs_bias) {
  const bool column = layer.style == Style::Column;
  const at::Tensor dy =
      layer.style == Style::Row ? layer.region->enter(dy_own, layer.positions) : dy_own;
  at::Tensor dx, dweight, dbias;
  if (weight.defined()) dx = at::matmul(dy, weight);
  if (weight.defined() && column) dx = layer.region->leave(dx);
  if (x.defined()) {
    const at::Tensor in = column ? layer.region->enter(x, layer.positions) : x;
    dweight = at::mm(rows_of(dy).t(), rows_of(in));
  }
  if (needs_bias) dbias = bias_gradient(layer, dy_own);
  return {dx, dweight, dbias, {}};
}

/// The backward of a column overlaps communication with computation:
///
///   gather x ─────────────────┐       (only if positions are cut)
///   dx = dy W, reduce it ──┐  │
///   dW = dy^T x  <─────────│──┘
///   dx  <──────────────────┘
struct LinearFunction : ag::Function<LinearFunction> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            LinearContextPtr layer) {
    const at::AutoDispatchBelowADInplaceOrView below;
    // The gradient of each needs the other.
    context->save_for_backward(
        {weight.requires_grad() ? x : at::Tensor(), x.requires_grad() ? weight : at::Tensor()});
    context->saved_data["layer"] = c10::IValue::make_capsule(layer);
    const at::Tensor b = bias.value_or(at::Tensor());
    switch (layer->style) {
      case Style::Column:
        return product_and_bias(layer->region->start_enter(x, layer->positions).wait(), weight, b);
      case Style::Row: {
        const at::Tensor y = layer->region->start_leave(product(x, weight)).wait();
        return b.defined() ? y.add_(b) : y;
      }
      default: return product_and_bias(x, weight, b);
    }
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto layer =
        c10::static_intrusive_pointer_cast<LinearContext>(context->saved_data["layer"].toCapsule());
    const bool needs_x = context->needs_input_grad(0), needs_weight = context->needs_input_grad(1);
    const bool column = layer->style == Style::Column;
    const bool needs_bias = layer->has_bias && context->needs_input_grad(2);
    if (at::GradMode::is_enabled())
      return backward_in_graph(*layer, gradients[0], needs_weight ? saved[0] : at::Tensor(),
                               needs_x ? saved[1] : at::Tensor(), needs_bias);
    // Detached from their graph, because a deferred job may keep x for long.
    const at::Tensor x = needs_weight ? saved[0].detach() : at::Tensor(),
                     weight = needs_x ? saved[1].detach() : at::Tensor();
    const at::Tensor dy_own = gradients[0].contiguous();
    const at::Tensor dy = layer->style == Style::Row
                              ? layer->region->start_enter(dy_own, layer->positions).wait()
                              : dy_own;
    if (layer->queue != nullptr && layer->queue->defers() && may_defer(*layer)) {
      if (needs_weight)
        layer->queue->push({layer->weight, [layer, x, dy, column] {
                              const at::Tensor in =
                                  column ? layer->region->start_enter(x, layer->positions).wait()
                                         : x;
                              return weight_gradient(rows_of(dy), rows_of(in));
                            }});
      if (needs_bias)
        layer->queue->push(
            {layer->bias, [layer, dy_own] { return bias_gradient(*layer, dy_own); }});
      at::Tensor dx;
      if (needs_x) dx = product(dy, weight.t());
      if (needs_x && column) dx = layer->region->start_leave(dx).wait();
      return {dx, {}, {}, {}};
    }
    TensorInFlight inputs, dx_parts;
    if (column && needs_weight) inputs = layer->region->start_enter(x, layer->positions);
    at::Tensor dx, dweight, dbias;
    if (needs_x) dx = product(dy, weight.t());
    if (column && needs_x) dx_parts = layer->region->start_leave(dx);
    if (needs_weight) dweight = weight_gradient(rows_of(dy), rows_of(column ? inputs.wait() : x));
    if (needs_bias) dbias = bias_gradient(*layer, dy_own);
    if (column && needs_x) dx = dx_parts.wait();
    return {dx, dweight, dbias, {}};
  }
};

at::Tensor compute_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          LinearContextPtr layer) {
  layer->has_bias = bias.defined();
  if (bias.defined()) layer->bias_dtype = bias.scalar_type();
  // A weight that stays in float32 among 16-bit layers computes in float32.
  const at::Tensor y = LinearFunction::apply(
      x.to(weight.scalar_type()), weight,
      bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt, std::move(layer));
  return y.to(x.scalar_type());
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return compute_linear(x, weight, bias, c10::make_intrusive<LinearContext>());
}

InitRule linear_rule(int64_t in, double deviation) {
  return deviation > 0 ? InitRule::normal(deviation)
                       : InitRule::uniform(1 / std::sqrt(static_cast<double>(in)));
}

LinearImpl::LinearImpl(int64_t in, int64_t out) : LinearImpl(in, out, Options{}) {}

LinearImpl::LinearImpl(int64_t in, int64_t out, Options options)
    : weight(parameter("weight", {out, in}, linear_rule(in, options.deviation))),
      in_(in),
      out_(out),
      options_(std::move(options)) {
  if (options_.bias)
    bias =
        parameter("bias", {out}, options_.deviation > 0 ? InitRule::zeros() : linear_rule(in, 0));
}

Layouts LinearImpl::layouts(Style style, Sequence sequence) const {
  Layouts all;
  const std::vector<Axis> partial =
      sequence == Sequence::Cut ? std::vector<Axis>{Axis::Tensor} : std::vector<Axis>{};
  if (style == Style::Column) {
    const auto& sections = options_.out_sections;
    all.emplace("weight", Layout({out_, in_}, {{Axis::Tensor, 0, sections}}));
    if (bias.defined()) all.emplace("bias", Layout({out_}, {{Axis::Tensor, 0, sections}}));
    return all;
  }
  if (style == Style::Row) {
    all.emplace("weight", Layout({out_, in_}, {{Axis::Tensor, 1, options_.in_sections}}));
    if (bias.defined()) all.emplace("bias", Layout({out_}, {}, partial));
    return all;
  }
  return LayerImpl::layouts(style, sequence);
}

std::vector<Range> LinearImpl::out_parts() const {
  if (style() == Style::Column) {
    const DeclaredParameter& own = *declared().find("weight");
    return own.layout.section_ranges(Axis::Tensor, own.coord, own.degrees);
  }
  std::vector<Range> parts;
  int64_t begin = 0;
  for (const Section& section : options_.out_sections) {
    parts.push_back({begin, section.size});
    begin += section.size;
  }
  if (parts.empty()) parts.push_back({0, out_});
  return parts;
}

std::optional<Cut> LinearImpl::feature_cut() const {
  if (style() != Style::Column) return std::nullopt;
  return Cut{.axis = Axis::Tensor, .dim = -1, .sections = options_.out_sections};
}

Flow LinearImpl::compute(const Flow& in) {
  auto layer = c10::make_intrusive<LinearContext>();
  layer->style = region() == nullptr || region()->size() == 1 ? Style::Whole : style();
  layer->region = region();
  if (queue_ != nullptr) {
    layer->queue = queue_;
    layer->weight = weight;
    layer->bias = bias;
  }
  auto where = in.where;
  if (layer->style == Style::Column) {
    layer->positions = region()->positions(in);
    where = region()->entered(in);
  } else if (layer->style == Style::Row) {
    layer->positions = region()->positions_to_cut(in.x());
    where = region()->left(in, layer->positions);
  }
  return {compute_linear(in.x(), weight, bias, std::move(layer)), std::move(where)};
}

}  // namespace trireme::nn
