#include "trireme/nn/linear.h"

#include <torch/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>

#include "trireme/nn/matmul.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

/// What the graph must know of the layer.
struct How : torch::CustomClassHolder {
  Style style = Style::Whole;
  RegionPtr region;
  int64_t positions = 0;
  bool has_bias = false;  // where there is none, autograd has no place for its gradient
  // Where the weights' gradients may be computed later: the queue, and whom they are of.
  WeightQueuePtr queue;
  at::Tensor weight, bias;
};
using HowPtr = c10::intrusive_ptr<How>;

at::Tensor rows_of(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

/// A hook on a weight wants its gradient from autograd.
bool may_defer(const How& how) {
  const auto is_free = [](const at::Tensor& one) {
    return !one.defined() || ag::impl::hooks(one).empty();
  };
  return is_free(how.weight) && is_free(how.bias);
}

/// The backward where gradients will be differentiated themselves: of operations that autograd sees
/// through.
ag::variable_list backward_in_graph(const How& how, const at::Tensor& dy_own, const at::Tensor& x,
                                    const at::Tensor& weight, bool needs_bias) {
  const bool column = how.style == Style::Column;
  const at::Tensor dy = how.style == Style::Row ? how.region->enter(dy_own, how.positions) : dy_own;
  at::Tensor dx, dweight, dbias;
  if (weight.defined()) dx = at::matmul(dy, weight);
  if (weight.defined() && column) dx = how.region->leave(dx);
  if (x.defined()) {
    const at::Tensor in = column ? how.region->enter(x, how.positions) : x;
    dweight = at::mm(rows_of(dy).t(), rows_of(in));
  }
  if (needs_bias) dbias = rows_of(dy_own).sum(0);
  return {dx, dweight, dbias, {}};
}

/// What is sent while something is computed:
///
///   column, backward   gather x ─────────────────┐       (only where positions are cut)
///                      dx = dy W, send it ──┐    │
///                      dW = dy^T x  <───────│────┘
///                      dx  <────────────────┘
struct LinearFunction : ag::Function<LinearFunction> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            HowPtr how) {
    const at::AutoDispatchBelowADInplaceOrView below;
    // Each is for the other's gradient.
    context->save_for_backward(
        {weight.requires_grad() ? x : at::Tensor(), x.requires_grad() ? weight : at::Tensor()});
    context->saved_data["how"] = c10::IValue::make_capsule(how);
    const at::Tensor b = bias.value_or(at::Tensor());
    switch (how->style) {
      case Style::Column:
        return product(how->region->start_enter(x, how->positions).wait(), weight, b);
      case Style::Row: {
        const at::Tensor y = how->region->start_leave(product(x, weight)).wait();
        return b.defined() ? y.add_(b) : y;
      }
      default: return product(x, weight, b);
    }
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto how =
        c10::static_intrusive_pointer_cast<How>(context->saved_data["how"].toCapsule());
    const bool needs_x = context->needs_input_grad(0), needs_weight = context->needs_input_grad(1);
    const bool column = how->style == Style::Column;
    const bool needs_bias = how->has_bias && context->needs_input_grad(2);
    if (at::GradMode::is_enabled())
      return backward_in_graph(*how, gradients[0], needs_weight ? saved[0] : at::Tensor(),
                               needs_x ? saved[1] : at::Tensor(), needs_bias);
    // Without the graph that made them: a job may keep x for long.
    const at::Tensor x = needs_weight ? saved[0].detach() : at::Tensor(),
                     weight = needs_x ? saved[1].detach() : at::Tensor();
    const at::Tensor dy_own = gradients[0].contiguous();
    const at::Tensor dy =
        how->style == Style::Row ? how->region->start_enter(dy_own, how->positions).wait() : dy_own;
    if (how->queue != nullptr && how->queue->defers() && may_defer(*how)) {
      if (needs_weight)
        how->queue->push({how->weight, [how, x, dy, column] {
                            const at::Tensor in =
                                column ? how->region->start_enter(x, how->positions).wait() : x;
                            return weight_gradient(rows_of(dy), rows_of(in));
                          }});
      if (needs_bias) how->queue->push({how->bias, [dy_own] { return rows_of(dy_own).sum(0); }});
      at::Tensor dx;
      if (needs_x) dx = product(dy, weight.t());
      if (needs_x && column) dx = how->region->start_leave(dx).wait();
      return {dx, {}, {}, {}};
    }
    Moving inputs, dx_parts;
    if (column && needs_weight) inputs = how->region->start_enter(x, how->positions);
    at::Tensor dx, dweight, dbias;
    if (needs_x) dx = product(dy, weight.t());
    if (column && needs_x) dx_parts = how->region->start_leave(dx);
    if (needs_weight) dweight = weight_gradient(rows_of(dy), rows_of(column ? inputs.wait() : x));
    if (needs_bias) dbias = rows_of(dy_own).sum(0);
    if (column && needs_x) dx = dx_parts.wait();
    return {dx, dweight, dbias, {}};
  }
};

at::Tensor compute_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          HowPtr how) {
  how->has_bias = bias.defined();
  return LinearFunction::apply(
      x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt, std::move(how));
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return compute_linear(x, weight, bias, c10::make_intrusive<How>());
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

std::map<std::string, Layout> LinearImpl::layouts(Style style, Sequence sequence) const {
  std::map<std::string, Layout> all;
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

std::vector<Part> LinearImpl::out_parts() const {
  if (style() == Style::Column) {
    const Declared& own = *declared("weight");
    return own.layout.section_parts(Axis::Tensor, own.coord, own.degrees);
  }
  std::vector<Part> parts;
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
  auto how = c10::make_intrusive<How>();
  how->style = region() == nullptr || region()->size() == 1 ? Style::Whole : style();
  how->region = region();
  if (queue_ != nullptr) {
    how->queue = queue_;
    how->weight = weight;
    how->bias = bias;
  }
  auto where = in.where;
  if (how->style == Style::Column) {
    how->positions = region()->positions(in);
    where = region()->entered(in);
  } else if (how->style == Style::Row) {
    how->positions = region()->positions_to_cut(in.x());
    where = region()->left(in, how->positions);
  }
  return {compute_linear(in.x(), weight, bias, std::move(how)), std::move(where)};
}

}  // namespace trireme::nn
