#include "trireme/nn/matmul.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/autograd.h>

#include <cstring>
#include <optional>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

bool is_amd() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0) return false;
  char vendor[12];
  std::memcpy(vendor, &ebx, 4);
  std::memcpy(vendor + 4, &edx, 4);
  std::memcpy(vendor + 8, &ecx, 4);
  return std::memcmp(vendor, "AuthenticAMD", 12) == 0;
#else
  return false;
#endif
}

/// libtorch's own door to oneDNN's inner product on plain tensors, where it was built with one.
using OneDnn = c10::TypedOperatorHandle<at::Tensor(
    const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
    c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>)>;

std::optional<OneDnn> find_onednn() {
  if (!is_amd()) return std::nullopt;
  const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!found) return std::nullopt;
  try {
    return found->typed<at::Tensor(
        const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
        c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>)>();
  } catch (const c10::Error&) {  // another version's signature
    return std::nullopt;
  }
}

const std::optional<OneDnn>& onednn() {
  static const std::optional<OneDnn> handle = find_onednn();
  return handle;
}

bool suits(const at::Tensor& x, const at::Tensor& weight) {
  return x.device().is_cpu() && x.scalar_type() == at::kFloat &&
         weight.scalar_type() == at::kFloat && x.numel() > 0 && onednn().has_value();
}

at::Tensor multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return onednn()->call(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, "none",
                        c10::List<std::optional<at::Scalar>>(), "");
}

struct LinearFunction : ag::Function<LinearFunction> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, weight});
    return multiply(x, weight, bias.value_or(at::Tensor()));
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor dy = gradients[0].contiguous().reshape({-1, weight.size(0)});
    at::Tensor dx, dweight, dbias;
    if (context->needs_input_grad(0)) dx = multiply(dy, weight.detach().t(), {}).view(x.sizes());
    if (context->needs_input_grad(1)) dweight = at::mm(dy.t(), x.reshape({-1, weight.size(1)}));
    if (context->needs_input_grad(2)) dbias = dy.sum(0);
    return {dx, dweight, dbias};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!suits(x, weight)) return at::linear(x, weight, bias);
  return LinearFunction::apply(x, weight,
                               bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
}

at::Tensor product(const at::Tensor& x, const at::Tensor& weight) {
  return suits(x, weight) ? multiply(x, weight, {}) : at::mm(x, weight.t());
}

}  // namespace trireme::nn
