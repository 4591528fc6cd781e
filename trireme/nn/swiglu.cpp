#include "trireme/nn/swiglu.h"

#include <torch/autograd.h>

#include "trireme/comm/dtype.h"
#include "trireme/cuda/swiglu.h"
#include "trireme/nn/rows.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

at::Tensor forward_on_cpu(const at::Tensor& z) {
  const at::Tensor wide = widened(z);
  std::vector<int64_t> shape = z.sizes().vec();
  const int64_t width = shape.back() /= 2;
  const at::Tensor h = at::empty(shape, wide.options());
  each_float(wide.scalar_type(), [&]<class T>(T) {
    over_rows(z, [&](int64_t begin, int64_t end) {
      row_kernels<T>().swiglu(wide.data_ptr<T>(), h.data_ptr<T>(), width, begin, end);
    });
  });
  return h.to(z.scalar_type());
}

at::Tensor backward_on_cpu(const at::Tensor& dh, const at::Tensor& z) {
  const at::Tensor wide = widened(z), by = widened(dh), dz = at::empty_like(wide);
  each_float(wide.scalar_type(), [&]<class T>(T) {
    over_rows(z, [&](int64_t begin, int64_t end) {
      row_kernels<T>().swiglu_backward(wide.data_ptr<T>(), by.data_ptr<T>(), dz.data_ptr<T>(),
                                       z.size(-1) / 2, begin, end);
    });
  });
  return dz.to(z.scalar_type());
}

/// The same by operations that can be differentiated again.
at::Tensor backward_in_graph(const at::Tensor& dh, const at::Tensor& z) {
  const auto parts = z.chunk(2, -1);
  const at::Tensor &gate = parts[0], &up = parts[1], s = at::sigmoid(gate);
  return at::cat({dh * up * s * (1 + gate * (1 - s)), dh * gate * s}, -1);
}

struct SwiGluFunction : ag::Function<SwiGluFunction> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& z) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({z});
    return z.is_cpu() ? forward_on_cpu(z) : cuda::swiglu(z.contiguous());
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const at::Tensor z = context->get_saved_variables()[0], &dh = gradients[0];
    if (at::GradMode::is_enabled()) return {backward_in_graph(dh, z)};
    return {z.is_cpu() ? backward_on_cpu(dh, z)
                       : cuda::swiglu_backward(dh.contiguous(), z.contiguous())};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& z) {
  if (z.is_cpu() || comm::is_half(z.scalar_type())) return SwiGluFunction::apply(z);
  const auto parts = z.chunk(2, -1);
  return at::silu(parts[0]) * parts[1];
}

Layouts SwiGluImpl::layouts(Style style, Sequence sequence) const {
  return style == Style::Column ? Layouts{} : LayerImpl::layouts(style, sequence);
}

std::optional<Cut> SwiGluImpl::feature_cut() const {
  if (style() != Style::Column) return std::nullopt;
  return Cut{.axis = Axis::Tensor, .dim = -1, .sections = {{.size = width_}}};
}

Flow SwiGluImpl::compute(const Flow& in) {
  Flow out = in.with(swiglu(in.x()));
  if (remakes_ && at::GradMode::is_enabled())
    out.remake = std::make_shared<const Remake>(
        Remake{.from = {in.x()},
               .make = [](const std::vector<at::Tensor>& from) { return swiglu(from.front()); }});
  return out;
}

}  // namespace trireme::nn
