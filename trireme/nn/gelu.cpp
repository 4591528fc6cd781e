#include "trireme/nn/gelu.h"

#include <torch/autograd.h>

#include "trireme/nn/gelu_kernels.h"
#include "trireme/nn/parallel_loop.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

constexpr int64_t kGrain = 16384;

struct GeluTanh : ag::Function<GeluTanh> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    const at::Tensor y = at::empty_like(x);
    const auto* from = x.data_ptr<float>();
    auto* to = y.data_ptr<float>();
    parallel_loop(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      gelu_kernels().forward(from + begin, to + begin, end - begin);
    });
    return y;
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    // The gradient will be differentiated itself; torch's version can be.
    if (at::GradMode::is_enabled()) return {at::gelu_backward(gradients[0], x, "tanh")};
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor dx = at::empty_like(x);
    const auto *from = x.data_ptr<float>(), *by = dy.data_ptr<float>();
    auto* to = dx.data_ptr<float>();
    parallel_loop(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      gelu_kernels().backward(from + begin, by + begin, to + begin, end - begin);
    });
    return {dx};
  }
};

}  // namespace

at::Tensor gelu_tanh(const at::Tensor& x) {
  if (!x.device().is_cpu() || x.scalar_type() != at::kFloat) return at::gelu(x, "tanh");
  return GeluTanh::apply(x.contiguous());
}

}  // namespace trireme::nn
