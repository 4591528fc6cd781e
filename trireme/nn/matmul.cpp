#include "trireme/nn/matmul.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include <cstring>
#include <optional>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace trireme::nn {

namespace {

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

/// libtorch's operator for oneDNN's inner product on plain tensors, if libtorch was built with it.
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

}  // namespace

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!suits(x, weight)) return at::linear(x, weight, bias);
  return onednn()->call(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, "none",
                        c10::List<std::optional<at::Scalar>>(), "");
}

at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x) {
  return suits(dy, x) ? product(dy.t(), x.t()) : at::mm(dy.t(), x);
}

}  // namespace trireme::nn
