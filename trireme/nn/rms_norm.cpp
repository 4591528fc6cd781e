#include "trireme/nn/rms_norm.h"

#include <torch/autograd.h>

#include "trireme/comm/dtype.h"
#include "trireme/cuda/norm.h"
#include "trireme/nn/matmul.h"
#include "trireme/nn/rows.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

/// Can our kernels normalize these? On the CPU any of them; on a GPU 16 bits.
bool has_kernel(const at::Tensor& x, const at::Tensor& weight) {
  if (x.is_cpu()) return true;
  return comm::is_half(x.scalar_type()) && weight.scalar_type() == x.scalar_type() &&
         cuda::can_normalize(x);
}

struct Normalized {
  at::Tensor y, rstd;  ///< of x's dtype; of each row, at least float32
};

Normalized normalize_on_cpu(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const at::Tensor wide = widened(x), g = weight.to(wide.scalar_type());
  const at::Tensor y = at::empty_like(wide), rstd = at::empty({rows_in(x)}, wide.options());
  each_float(wide.scalar_type(), [&]<class T>(T) {
    const RmsNormRows<T> in{wide.data_ptr<T>(), g.data_ptr<T>(), x.size(-1),
                            static_cast<T>(epsilon)};
    over_rows(x, [&](int64_t begin, int64_t end) {
      row_kernels<T>().rms_norm(in, y.data_ptr<T>(), rstd.data_ptr<T>(), begin, end);
    });
  });
  return {y.to(x.scalar_type()), rstd};
}

Normalized normalize(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  if (x.is_cpu()) return normalize_on_cpu(x, weight, epsilon);
  const at::Tensor y = at::empty_like(x);
  return {y, cuda::norm(rows_of(y), rows_of(x), weight, {}, epsilon).rstd};
}

struct Gradients {
  at::Tensor x, weight;
};

/// The gradient of the weight is summed over blocks of rows, and then over the blocks: in the same
/// order for any number of threads.
Gradients gradients_on_cpu(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& rstd, const at::Tensor& also) {
  constexpr int64_t kBlock = 64;
  const at::Tensor wide = widened(x), by = widened(dy), g = weight.to(wide.scalar_type());
  const at::Tensor more = also.defined() ? widened(also) : also;
  const int64_t rows = rows_in(x), blocks = (rows + kBlock - 1) / kBlock, width = x.size(-1);
  const at::Tensor dx = at::empty_like(wide), parts = at::zeros({blocks, width}, wide.options());
  each_float(wide.scalar_type(), [&]<class T>(T) {
    const RmsNormRows<T> in{wide.data_ptr<T>(), g.data_ptr<T>(), width, T(0)};
    const T* also_data = more.defined() ? more.data_ptr<T>() : nullptr;
    parallel_loop(0, blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block)
        row_kernels<T>().rms_norm_backward(in, rstd.data_ptr<T>(), by.data_ptr<T>(), also_data,
                                           dx.data_ptr<T>(), parts.data_ptr<T>() + block * width,
                                           block * kBlock, std::min(rows, (block + 1) * kBlock));
    });
  });
  return {dx.to(x.scalar_type()), parts.sum(0).to(weight.scalar_type())};
}

Gradients gradients_of(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& rstd, const at::Tensor& also) {
  if (x.is_cpu()) return gradients_on_cpu(dy, x, weight, rstd, also);
  const at::Tensor stream = also.defined() ? rows_of(also).contiguous() : also;
  const auto all =
      cuda::norm_backward(rows_of(dy).contiguous(), rows_of(x), weight, {{}, rstd}, stream);
  return {all.x.view(x.sizes()), all.weight};
}

/// The same by operations that can be differentiated again.
Gradients gradients_in_graph(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             double epsilon, const at::Tensor& also) {
  const at::Tensor r = at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + epsilon), h = x * r;
  const at::Tensor w = dy * weight;
  const at::Tensor dx = r * (w - h * (w * h).mean(-1, /*keepdim=*/true));
  return {also.defined() ? also + dx : dx, rows_of(dy * h).sum(0)};
}

/// Returns {normalized, x, rstd}; its backward adds the gradient of the second to that of the first
/// in the same pass.
struct RmsNormFunction : ag::Function<RmsNormFunction> {
  static ag::variable_list forward(ag::AutogradContext* context, const at::Tensor& x,
                                   const at::Tensor& weight, double epsilon) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor in = x.contiguous();
    const auto [y, rstd] = normalize(in, weight, epsilon);
    // x itself, so that a gradient of the gradient finds its graph.
    context->save_for_backward({x, weight, rstd});
    context->saved_data["epsilon"] = epsilon;
    context->mark_non_differentiable({rstd});
    context->set_materialize_grads(false);
    return {y, x, rstd};
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &dy = gradients[0], &also = gradients[1], &x = saved[0], &weight = saved[1];
    if (!dy.defined()) return {also, {}, {}};
    const double epsilon = context->saved_data["epsilon"].toDouble();
    const Gradients all = at::GradMode::is_enabled()
                              ? gradients_in_graph(dy, x, weight, epsilon, also)
                              : gradients_of(dy, x.contiguous(), weight, saved[2], also);
    return {all.x, all.weight, {}};
  }
};

/// {normalized, x}, where autograd adds the gradients of both at once if a kernel can.
ag::variable_list both_of(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  if (has_kernel(x, weight)) {
    ag::variable_list all = RmsNormFunction::apply(x, weight, epsilon);
    all.pop_back();
    return all;
  }
  return {at::rms_norm(x, {x.size(-1)}, weight.to(x.scalar_type()), epsilon), x};
}

}  // namespace

RmsNormImpl::RmsNormImpl(int64_t width, Options options)
    : weight(parameter("weight", {width}, InitRule::ones())), options_(options) {}

Flow RmsNormImpl::compute(const Flow& in) {
  Flow out(both_of(in.x(), weight, options_.epsilon), in.where);
  if (!options_.passes_input) out.tensors.pop_back();
  if (!remakes_ || !at::GradMode::is_enabled()) return out;
  const at::Tensor later = *remakes_ == WeightsLater::MayGo ? weight.clone() : weight;
  const auto make = [epsilon = options_.epsilon](const std::vector<at::Tensor>& from) {
    return both_of(from[0], from[1], epsilon).front();
  };
  out.remake = std::make_shared<const Remake>(Remake{.from = {in.x(), later}, .make = make});
  return out;
}

}  // namespace trireme::nn
