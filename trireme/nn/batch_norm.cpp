#include "trireme/nn/batch_norm.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/autograd.h>

#include "trireme/core/error.h"
#include "trireme/nn/batch_norm_math.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

/// What the graph keeps of a call besides its tensors.
struct NormContext : torch::CustomClassHolder {
  batch_norm::Of of;
  bool relu = false, has_residual = false;
};
using NormContextPtr = c10::intrusive_ptr<NormContext>;

/// One over the deviation of each channel.
at::Tensor inverse_deviation(const batch_norm::Moments& moments, double epsilon) {
  return (moments.squares / moments.count.clamp_min(1) + epsilon).rsqrt();
}

at::Tensor in_double(const at::Tensor& one, const at::Tensor& like, double otherwise) {
  return one.defined() ? one.detach().to(at::kDouble) : at::full_like(like, otherwise);
}

at::Tensor as(const at::Tensor& one, const at::Tensor& numbers) {
  return one.defined() && one.requires_grad() ? numbers.to(one.scalar_type()) : at::Tensor();
}

/// With N elements of a channel on all ranks, their mean m and d = 1 / sqrt(variance + epsilon):
///
///   y = (x - m) d weight + bias
///   dx = (g - sum(g) / N - (x - m) d^2 sum(g (x - m)) / N) d weight
///   dweight = d sum(g (x - m)), dbias = sum(g)
///
/// The sums of dx are over all ranks, those of dweight and dbias over this one: the gradients of
/// parameters are summed later.
struct NormalizeFunction : ag::Function<NormalizeFunction> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& weight_of,
                            const std::optional<at::Tensor>& bias_of,
                            const std::optional<at::Tensor>& residual, NormContextPtr call) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const batch_norm::Of& of = call->of;
    const at::Tensor weight = weight_of.value_or(at::Tensor()),
                     bias = bias_of.value_or(at::Tensor());
    const at::Tensor all = of.statistics->gather(batch_norm::moments_of(x.detach()));
    const batch_norm::Moments moments(all);
    check_count(moments.count);
    const at::Tensor deviation = inverse_deviation(moments, of.epsilon);
    const at::Tensor scale = in_double(weight, deviation, 1) * deviation;
    const at::Tensor y =
        batch_norm::normalized(x, {moments.mean, scale, in_double(bias, deviation, 0)},
                               residual.value_or(at::Tensor()), call->relu);
    of.statistics->track(all, of.running, of.momentum);
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->saved_data["moments"] = all;
    context->saved_data["deviation"] = deviation;
    context->save_for_backward({x, weight, bias, call->relu ? y : at::Tensor()});
    return y;
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "batch norm: a gradient of a gradient (create_graph) is not there; freeze it "
                "(eval()) and it is");
    const auto saved = context->get_saved_variables();
    const at::Tensor x = saved[0].detach(), &weight = saved[1], &bias = saved[2];
    const auto call =
        c10::static_intrusive_pointer_cast<NormContext>(context->saved_data["call"].toCapsule());
    const batch_norm::Moments moments(context->saved_data["moments"].toTensor());
    const at::Tensor deviation = context->saved_data["deviation"].toTensor();
    const auto passed = call->has_residual ? batch_norm::Passed::Keep : batch_norm::Passed::Forget;
    batch_norm::OutputGradient gradient{gradients[0],
                                        saved[3].defined() ? saved[3].detach() : at::Tensor()};
    at::Tensor sums = batch_norm::gradient_sums(x, gradient, moments.mean, passed);
    ag::variable_list out(5);
    out[1] = as(weight, sums[1] * deviation);
    out[2] = as(bias, sums[0].clone());
    if (call->has_residual) out[3] = gradient.dy;
    if (context->needs_input_grad(0)) {
      const comm::Communicator* const group = call->of.statistics->group();
      if (group != nullptr) group->all_reduce(sums).wait();
      const at::Tensor share = moments.count.clamp_min(1).reciprocal();
      out[0] =
          batch_norm::input_gradient(x, gradient,
                                     {moments.mean, in_double(weight, deviation, 1) * deviation,
                                      sums[0] * share, sums[1] * share * deviation.square()});
    }
    return out;
  }

  /// On a GPU the host would have to wait for the number.
  static void check_count(const at::Tensor& count) {
    if (!count.is_cpu()) return;
    core::check(*count.data_ptr<double>() != 1,
                "batch norm: all ranks together have 1 value of each channel, which has no "
                "variance; use larger micro-batches");
  }
};

}  // namespace

at::Tensor batch_norm::normalize(const Call& call, const Of& of) {
  auto context = c10::make_intrusive<NormContext>();
  context->of = of;
  context->relu = call.relu;
  context->has_residual = call.residual.defined();
  const auto if_defined = [](const at::Tensor& one) {
    return one.defined() ? std::optional(one) : std::nullopt;
  };
  return NormalizeFunction::apply(call.x, if_defined(call.weight), if_defined(call.bias),
                                  if_defined(call.residual), std::move(context));
}

BatchNormImpl::BatchNormImpl(int64_t channels, Options options)
    : weight(parameter("weight", {channels}, {InitRule::Kind::Constant, options.scale})),
      bias(parameter("bias", {channels}, InitRule::zeros())),
      running_mean(register_buffer("running_mean", at::zeros({channels}))),
      running_var(register_buffer("running_var", at::ones({channels}))),
      num_batches_tracked(register_buffer("num_batches_tracked", at::zeros({}, at::kLong))),
      options_(options) {}

/// (x - mean) scale + bias with differentiable operations.
at::Tensor BatchNormImpl::by_running(const at::Tensor& x) const {
  const auto dtype = at::promote_types(x.scalar_type(), at::kFloat);
  return at::batch_norm(x.to(dtype), weight.to(dtype), bias.to(dtype), running_mean.to(dtype),
                        running_var.to(dtype), /*training=*/false, 0, options_.epsilon,
                        /*cudnn_enabled=*/false)
      .to(x.scalar_type());
}

Flow BatchNormImpl::compute(const Flow& in) {
  const at::Tensor& x = in.x();
  const at::Tensor residual = in.tensors.size() > 1 ? in.tensors[1] : at::Tensor();
  if (is_training())
    return in.with(batch_norm::normalize(
        {.x = x, .weight = weight, .bias = bias, .residual = residual, .relu = options_.relu},
        {.statistics = statistics_,
         .running = {running_mean, running_var, num_batches_tracked},
         .momentum = options_.momentum,
         .epsilon = options_.epsilon}));
  at::Tensor y = by_running(x);
  if (residual.defined()) y = y + residual;
  return in.with(options_.relu ? y.relu() : y);
}

}  // namespace trireme::nn
