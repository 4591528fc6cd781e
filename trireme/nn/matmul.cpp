#include "trireme/nn/matmul.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cstring>
#include <optional>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "trireme/comm/dtype.h"
#include "trireme/cuda/columns.h"
#include "trireme/cuda/gelu.h"
#include "trireme/cuda/matmul.h"
#include "trireme/nn/matvec.h"
#include "trireme/nn/parallel_loop.h"

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

/// A new tensor of x's rows and `width` columns.
at::Tensor empty_rows(const at::Tensor& x, int64_t width) {
  auto shape = x.sizes().vec();
  shape.back() = width;
  return at::empty(shape, x.options());
}

/// Is x a single row, for which the weight is only read, and faster by our own loop?
bool is_vector(const at::Tensor& x, const at::Tensor& weight) {
  return x.device().is_cpu() && x.scalar_type() == at::kFloat &&
         weight.scalar_type() == at::kFloat && x.numel() > 0 && x.numel() == x.size(-1) &&
         x.is_contiguous() && weight.is_contiguous();
}

/// x W^T of a single row, the rows of W dealt to the threads.
at::Tensor vector_product(const at::Tensor& x, const at::Tensor& weight) {
  constexpr int64_t kFewestFloats = 1 << 15;  // of a thread
  const int64_t rows = weight.size(0), width = weight.size(1);
  const at::Tensor y = empty_rows(x, rows);
  const float *from = weight.const_data_ptr<float>(), *by = x.const_data_ptr<float>();
  auto* to = y.mutable_data_ptr<float>();
  parallel_loop(0, rows, std::max<int64_t>(1, kFewestFloats / width),
                [&](int64_t begin, int64_t end) {
                  matvec_kernel()(from + begin * width, by, to + begin, end - begin, width);
                });
  return y;
}

bool same_on_gpu(const at::Tensor& x, const at::Tensor& other) {
  return x.is_cuda() && comm::is_half(x.scalar_type()) && other.scalar_type() == x.scalar_type();
}

}  // namespace

bool on_gpu_in_16_bits(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return same_on_gpu(x, weight) && (!bias.defined() || same_on_gpu(x, bias));
}

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                   const at::Tensor& residual) {
  if (on_gpu_in_16_bits(x, weight, bias) && x.numel() > 0) {
    const at::Tensor y = empty_rows(x, weight.size(0));
    const bool fuses = residual.defined() && residual.scalar_type() == y.scalar_type();
    if (cuda::product(rows_of(y), rows_of(x), weight,
                      {.bias = bias, .residual = fuses ? rows_of(residual) : at::Tensor()}))
      return residual.defined() && !fuses ? residual + y : y;
  }
  if (is_vector(x, weight)) {
    at::Tensor y = vector_product(x, weight);
    if (bias.defined()) y.add_(bias);
    return residual.defined() ? residual + y : y;
  }
  const at::Tensor y =
      suits(x, weight)
          ? onednn()->call(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, "none",
                           c10::List<std::optional<at::Scalar>>(), "")
          : at::linear(x, weight, bias);
  return residual.defined() ? residual + y : y;
}

GeluProduct gelu_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor z = empty_rows(x, weight.size(0)), y = at::empty_like(z);
  if (cuda::product(rows_of(y), rows_of(x), weight, {.bias = bias, .gelu_of = rows_of(z)}))
    return {y, z};
  const at::Tensor plain = product(x, weight, bias);
  return {cuda::gelu(plain), plain};
}

at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& weight,
                          const at::Tensor& gelu_of) {
  if (same_on_gpu(dy, weight) && dy.numel() > 0) {
    const at::Tensor dx = empty_rows(dy, weight.size(1));
    if (cuda::input_gradient(rows_of(dx), rows_of(dy), weight,
                             gelu_of.defined() ? rows_of(gelu_of) : at::Tensor()))
      return dx;
  }
  const at::Tensor dx = product(dy, weight.t());
  return gelu_of.defined() ? cuda::gelu_backward(dx, gelu_of) : dx;
}

at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x) {
  if (same_on_gpu(dy, x) && x.numel() > 0) {
    const at::Tensor dweight = at::empty({dy.size(1), x.size(1)}, x.options());
    if (cuda::weight_gradient(dweight, dy, x)) return dweight;
  }
  return suits(dy, x) ? product(dy.t(), x.t()) : at::mm(dy.t(), x);
}

at::Tensor bias_gradient(const at::Tensor& dy, at::ScalarType dtype) {
  const at::Tensor rows = rows_of(dy);
  if (!same_on_gpu(dy, dy) || dtype != dy.scalar_type() || !rows.is_contiguous())
    return rows.sum(0, /*keepdim=*/false, dtype);
  at::Tensor sums = at::empty({rows.size(1)}, dy.options());
  cuda::column_sums(sums, rows);
  return sums;
}

}  // namespace trireme::nn
