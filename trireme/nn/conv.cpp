#include "trireme/nn/conv.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/max_pool2d.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <fmt/ranges.h>

#include "trireme/core/error.h"
#include "trireme/nn/linear.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

/// What the graph keeps of a call besides x and the weight.
struct ConvContext : torch::CustomClassHolder {
  int64_t stride = 1, padding = 0;
  bool has_bias = false;
  WeightQueuePtr queue;
  at::Tensor weight, bias;  // the parameters, if their gradients may be computed later

  bool defers() const {
    const auto is_free = [](const at::Tensor& one) {
      return !one.defined() || ag::impl::hooks(one).empty();
    };
    return queue != nullptr && queue->defers() && is_free(weight) && is_free(bias);
  }

  /// The gradients of x, the weight and the bias, as far as they are asked for.
  std::array<at::Tensor, 3> gradients(const at::Tensor& dy, const at::Tensor& x,
                                      const at::Tensor& w, std::array<bool, 3> wanted) const {
    auto [dx, dw, db] = at::convolution_backward(
        dy, x, w, at::OptionalIntArrayRef({w.size(0)}), {stride, stride}, {padding, padding},
        {1, 1}, /*transposed=*/false, {0, 0}, /*groups=*/1, wanted);
    return {dx, dw, db};
  }
};
using ConvContextPtr = c10::intrusive_ptr<ConvContext>;

/// torch's convolution, whose weight gradient can be put off.
struct ConvFunction : ag::Function<ConvFunction> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            ConvContextPtr layer) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, weight});
    layer->has_bias = bias.has_value();
    context->saved_data["layer"] = c10::IValue::make_capsule(layer);
    return at::conv2d(x, weight, bias, {layer->stride, layer->stride},
                      {layer->padding, layer->padding});
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto layer =
        c10::static_intrusive_pointer_cast<ConvContext>(context->saved_data["layer"].toCapsule());
    const at::Tensor &dy = gradients[0], &x = saved[0], &weight = saved[1];
    const bool to_x = context->needs_input_grad(0), to_weight = context->needs_input_grad(1),
               to_bias = layer->has_bias && context->needs_input_grad(2);
    if (at::GradMode::is_enabled() || !layer->defers() || !to_weight) {
      auto [dx, dw, db] = layer->gradients(dy, x, weight, {to_x, to_weight, to_bias});
      return {dx, dw, db, {}};
    }
    const auto later = [layer, dy, in = x.detach(), w = weight.detach()](std::size_t which) {
      return [=] {
        return layer->gradients(dy, in, w, {false, which == 1, which == 2})[which];
      };
    };
    layer->queue->push({layer->weight, later(1)});
    if (to_bias) layer->queue->push({layer->bias, later(2)});
    return {to_x ? layer->gradients(dy, x, weight, {true, false, false})[0] : at::Tensor(), {}, {},
            {}};
  }
};

}  // namespace

Conv2dImpl::Conv2dImpl(Options options) : options_(options) {
  const int64_t inputs = options.in * options.kernel * options.kernel;
  weight = parameter("weight", {options.out, options.in, options.kernel, options.kernel},
                     linear_rule(inputs, options.deviation));
  if (options.bias)
    bias = parameter("bias", {options.out},
                     options.deviation > 0 ? InitRule::zeros() : linear_rule(inputs, 0));
}

at::Tensor Conv2dImpl::compute(const at::Tensor& x, const Where* /*where*/) {
  core::check(x.dim() == 4 && x.size(1) == options_.in,
              "layer '{}': it takes images [rows, {}, height, width], not [{}]", full_name(),
              options_.in, fmt::join(x.sizes(), ", "));
  auto layer = c10::make_intrusive<ConvContext>();
  layer->stride = options_.stride;
  layer->padding = options_.padding;
  if (queue_ != nullptr) {
    layer->queue = queue_;
    layer->weight = weight;
    layer->bias = bias;
  }
  // A weight that stays in float32 among 16-bit layers computes in float32.
  const at::Tensor in = x.to(weight.scalar_type()).contiguous(options_.format);
  const auto b = bias.defined() ? std::optional(bias.to(weight.scalar_type())) : std::nullopt;
  const auto given = x.is_floating_point() ? x.scalar_type() : weight.scalar_type();
  return ConvFunction::apply(in, weight, b, std::move(layer)).to(compute_dtype().value_or(given));
}

at::Tensor MaxPool2dImpl::compute(const at::Tensor& x, const Where* /*where*/) {
  return at::max_pool2d(x, {kernel_, kernel_}, {stride_, stride_}, {padding_, padding_});
}

at::Tensor GlobalAveragePoolImpl::compute(const at::Tensor& x, const Where* /*where*/) {
  return x.mean({2, 3});
}

}  // namespace trireme::nn
