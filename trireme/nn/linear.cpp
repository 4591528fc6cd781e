#include "trireme/nn/linear.h"

#include <torch/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>

#include "trireme/cuda/gelu.h"
#include "trireme/nn/gelu.h"
#include "trireme/nn/matmul.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

/// What the autograd graph keeps of the layer for backward.
struct LinearContext : torch::CustomClassHolder {
  Style style = Style::Whole;
  TensorRegionPtr region;
  int64_t positions = 0;
  bool gelu = false;  // returns gelu(z) and z instead of z = x W^T + b
  // Which of the optional tensors there are; autograd has no slot for a gradient of the others.
  bool has_bias = false, has_residual = false, has_z = false;
  at::ScalarType weight_dtype = at::kFloat, bias_dtype = at::kFloat;
  std::shared_ptr<const Remake> remake;  // of x, until forward has saved what it is made from
  decltype(Remake::make) make;           // set if x is made again instead of saved
  // Set if the gradients of the weights may be computed later: the queue, and the parameters.
  WeightQueuePtr queue;
  at::Tensor weight, bias;

  // The places of the optional tensors among those that there are.
  std::size_t bias_slot() const { return 2; }
  std::size_t residual_slot() const { return 2 + std::size_t{has_bias}; }
  std::size_t z_slot() const { return residual_slot() + std::size_t{has_residual}; }
};
using LinearContextPtr = c10::intrusive_ptr<LinearContext>;

/// x W^T + b + residual; the bias may have another dtype.
at::Tensor whole_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const at::Tensor& residual) {
  if (!bias.defined() || bias.scalar_type() == x.scalar_type())
    return product(x, weight, bias, residual);
  const at::Tensor y = product(x, weight).add_(bias);
  return residual.defined() ? residual + y : y;
}

/// False if a weight has a hook: that must get its gradient from autograd.
bool may_defer(const LinearContext& layer) {
  const auto is_free = [](const at::Tensor& one) {
    return !one.defined() || ag::impl::hooks(one).empty();
  };
  return is_free(layer.weight) && is_free(layer.bias);
}

/// The gradients of a call: of x or of z, the weight, the bias and the residual.
struct LinearGradients {
  at::Tensor input, weight, bias, residual;
};

/// What backward needs, and which gradients are asked for.
struct LinearBackward {
  const LinearContextPtr& layer;
  at::Tensor dy, weight = {}, z = {};
  std::function<at::Tensor()> x = {};  // returns the saved one, or makes it again
  bool needs_input = false, needs_weight = false, needs_bias = false;

  LinearGradients in_graph() const;
  LinearGradients deferred() const;
  LinearGradients now() const;
};

/// The backward for gradients that will be differentiated themselves: it uses differentiable
/// operations only.
LinearGradients LinearBackward::in_graph() const {
  const bool column = layer->style == Style::Column;
  const at::Tensor dy_whole =
      layer->style == Style::Row ? layer->region->enter(dy, layer->positions) : dy;
  LinearGradients all;
  if (needs_input) {
    all.input = at::matmul(dy_whole, weight);
    if (column) all.input = layer->region->leave(all.input);
    if (z.defined()) all.input = at::gelu_backward(all.input, z, "tanh");
  }
  if (needs_weight) {
    const at::Tensor own = z.defined() ? at::gelu(z, "tanh") : x();
    const at::Tensor in = column ? layer->region->enter(own, layer->positions) : own;
    all.weight = at::mm(rows_of(dy_whole).t(), rows_of(in));
  }
  if (needs_bias) all.bias = rows_of(dy).sum(0, /*keepdim=*/false, layer->bias_dtype);
  return all;
}

/// Computes the gradient of the input, which other ranks wait for, and queues the others.
LinearGradients LinearBackward::deferred() const {
  const bool column = layer->style == Style::Column;
  const at::Tensor dy_whole =
      layer->style == Style::Row ? layer->region->start_enter(dy, layer->positions).wait() : dy;
  const auto kept = layer;
  if (needs_weight)
    layer->queue->push({layer->weight, [kept, in = x, dy_whole, column] {
                          const at::Tensor own = in();
                          const at::Tensor all =
                              column ? kept->region->start_enter(own, kept->positions).wait() : own;
                          return weight_gradient(rows_of(dy_whole), rows_of(all));
                        }});
  if (needs_bias)
    layer->queue->push(
        {layer->bias, [kept, own = dy] { return bias_gradient(own, kept->bias_dtype); }});
  LinearGradients all;
  if (needs_input) all.input = input_gradient(dy_whole, weight, z);
  if (needs_input && column) all.input = layer->region->start_leave(all.input).wait();
  return all;
}

/// The backward of a column overlaps communication with computation:
///
///   gather x ─────────────────┐       (only if positions are cut)
///   dx = dy W, reduce it ──┐  │
///   dW = dy^T x  <─────────│──┘
///   dx  <──────────────────┘
///
/// Otherwise, if x is made again, dW comes first: x is freed before there is a dx.
LinearGradients LinearBackward::now() const {
  const bool column = layer->style == Style::Column;
  const at::Tensor dy_whole =
      layer->style == Style::Row ? layer->region->start_enter(dy, layer->positions).wait() : dy;
  LinearGradients all;
  const auto of_weight = [&](const at::Tensor& in) {
    return weight_gradient(rows_of(dy_whole), rows_of(in));
  };
  const bool first = !column && layer->make != nullptr;
  if (first && needs_weight) all.weight = of_weight(x());
  TensorInFlight inputs, input_parts;
  if (column && needs_weight) inputs = layer->region->start_enter(x(), layer->positions);
  if (needs_input) all.input = input_gradient(dy_whole, weight, z);
  if (column && needs_input) input_parts = layer->region->start_leave(all.input);
  if (!first && needs_weight) all.weight = of_weight(column ? inputs.wait() : x());
  if (needs_bias) all.bias = bias_gradient(dy, layer->bias_dtype);
  if (column && needs_input) all.input = input_parts.wait();
  return all;
}

/// y = x W^T + b + residual. If `z` is given, x is gelu(z), and the gradient goes to z: on a GPU
/// its derivative is applied by the product that makes the gradient. For that, `gelu` makes the
/// layer before return both: {gelu(z), z}, of which only z is differentiable.
struct LinearFunction : ag::Function<LinearFunction> {
  static ag::variable_list forward(ag::AutogradContext* context, const at::Tensor& x,
                                   const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                   const std::optional<at::Tensor>& residual,
                                   const std::optional<at::Tensor>& z, LinearContextPtr layer) {
    const at::AutoDispatchBelowADInplaceOrView below;
    // The gradient of each needs the other.
    const bool needs_input = z ? z->requires_grad() : x.requires_grad();
    const auto remake = std::exchange(layer->remake, nullptr);
    const bool saves_x = weight.requires_grad() && remake == nullptr;
    ag::variable_list saved = {saves_x ? x : at::Tensor(), needs_input ? weight : at::Tensor(),
                               z.value_or(at::Tensor())};
    if (weight.requires_grad() && remake != nullptr) {
      layer->make = remake->make;
      saved.insert(saved.end(), remake->from.begin(), remake->from.end());
    }
    context->save_for_backward(std::move(saved));
    context->saved_data["layer"] = c10::IValue::make_capsule(layer);
    context->set_materialize_grads(false);  // gelu(z) has none: no zeros in its place
    const at::Tensor b = bias.value_or(at::Tensor()), r = residual.value_or(at::Tensor());
    const at::Tensor in =
        layer->style == Style::Column ? layer->region->start_enter(x, layer->positions).wait() : x;
    if (layer->gelu) {
      GeluProduct both = gelu_product(in, weight, b);
      context->mark_non_differentiable({both.gelu});
      context->set_materialize_grads(false);  // there is none for the GELU: no zeros in its place
      return {both.gelu, both.z};
    }
    if (layer->style != Style::Row) return {whole_product(in, weight, b, r)};
    at::Tensor y = layer->region->start_leave(product(x, weight)).wait();
    if (b.defined()) y.add_(b);
    return {r.defined() ? r + y : y};
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    if (!gradients.back().defined()) return ag::variable_list(6);
    ag::variable_list saved = context->get_saved_variables();
    const bool in_graph = at::GradMode::is_enabled();
    // Detached from their graph, because a deferred job may keep x for long.
    for (at::Tensor& one : saved)
      if (one.defined() && !in_graph) one = one.detach();
    const auto layer =
        c10::static_intrusive_pointer_cast<LinearContext>(context->saved_data["layer"].toCapsule());
    LinearBackward call{.layer = layer, .dy = gradients.back()};
    call.needs_input = context->needs_input_grad(layer->has_z ? layer->z_slot() : 0);
    call.needs_weight = context->needs_input_grad(1);
    call.needs_bias = layer->has_bias && context->needs_input_grad(layer->bias_slot());
    if (call.needs_weight) call.x = input_of(saved, layer);
    if (call.needs_input) call.weight = saved[1];
    call.z = saved[2];
    LinearGradients all;
    if (in_graph) {
      all = call.in_graph();
    } else {
      call.dy = call.dy.contiguous();
      const bool defers = layer->queue != nullptr && layer->queue->defers() && may_defer(*layer);
      all = defers ? call.deferred() : call.now();
    }
    if (layer->has_residual) all.residual = gradients.back();
    const bool to_z = layer->has_z;
    return {to_z ? at::Tensor() : all.input, all.weight, all.bias, all.residual,
            to_z ? all.input : at::Tensor(), {}};
  }

  /// x, or how to make it of what was saved in its place.
  static std::function<at::Tensor()> input_of(const ag::variable_list& saved,
                                              const LinearContextPtr& layer) {
    if (!layer->make) return [x = saved[0]] { return x; };
    return [layer, from = ag::variable_list(saved.begin() + 3, saved.end())] {
      return layer->make(from).to(layer->weight_dtype);
    };
  }
};

/// The operands of a Linear besides its parameters: x, and perhaps what is added to the result, and
/// what x is the GELU of.
struct LinearInputs {
  at::Tensor x, residual, z;
  std::shared_ptr<const Remake> remake = nullptr;  // of x
};

std::optional<at::Tensor> if_defined(const at::Tensor& one) {
  return one.defined() ? std::optional<at::Tensor>(one) : std::nullopt;
}

ag::variable_list compute_linear(const LinearInputs& in, const at::Tensor& weight,
                                 const at::Tensor& bias, LinearContextPtr layer) {
  layer->has_bias = bias.defined();
  layer->has_residual = in.residual.defined();
  layer->has_z = in.z.defined();
  if (bias.defined()) layer->bias_dtype = bias.scalar_type();
  layer->weight_dtype = weight.scalar_type();
  layer->remake = in.remake;
  // A weight that stays in float32 among 16-bit layers computes in float32.
  const auto dtype = in.x.scalar_type();
  ag::variable_list out =
      LinearFunction::apply(in.x.to(weight.scalar_type()), weight, if_defined(bias),
                            if_defined(in.residual), if_defined(in.z), std::move(layer));
  for (at::Tensor& one : out) one = one.to(dtype);
  return out;
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return compute_linear({x, {}, {}}, weight, bias, c10::make_intrusive<LinearContext>()).front();
}

namespace {

/// gelu(z), which is known already.
struct KnownGelu : ag::Function<KnownGelu> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& z,
                            const at::Tensor& gelu) {
    context->save_for_backward({z});
    return gelu.view_as(gelu);
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    return {at::gelu_backward(gradients[0], context->get_saved_variables()[0], "tanh"), {}};
  }
};

}  // namespace

Flow gelu_from(const Flow& out) {
  if (out.tensors.size() == 1) return out;
  Flow one = out.with(KnownGelu::apply(out.tensors[1], out.x()));
  one.remake = out.remake;
  return one;
}

namespace {

/// The GELU that a Linear has given, from what it is the GELU of.
at::Tensor gelu_again(const std::vector<at::Tensor>& from) {
  const at::Tensor& z = from.front();
  const bool fused = on_gpu_in_16_bits(z, z, {}) && !at::GradMode::is_enabled();
  return fused ? cuda::gelu(z.contiguous()) : gelu_tanh(z);
}

}  // namespace

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
  const std::size_t given = in.tensors.size();
  const LinearInputs inputs{.x = in.x(),
                            .residual = given > 1 ? in.tensors.back() : at::Tensor(),
                            .z = given > 2 ? in.tensors[1] : at::Tensor(),
                            .remake = in.remake};
  layer->gelu = options_.gelu && !has_adapter() && on_gpu_in_16_bits(in.x(), weight, bias) &&
                in.x().numel() > 0;
  ag::variable_list all = compute_linear(inputs, weight, bias, std::move(layer));
  if (has_adapter()) all.back() = adapted(in, all.back());
  if (!options_.gelu) return {std::move(all), std::move(where)};
  const at::Tensor z = all.back();
  if (all.size() == 1) all.front() = gelu_tanh(z);
  Flow out(std::move(all), std::move(where));
  if (remakes_ && at::GradMode::is_enabled())
    out.remake = std::make_shared<const Remake>(Remake{.from = {z}, .make = gelu_again});
  return out;
}

}  // namespace trireme::nn
