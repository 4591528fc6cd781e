#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/autograd.h>

#include <numeric>

#include "trireme/core/error.h"
#include "trireme/nn/experts.h"

namespace trireme::nn {

namespace {

struct GroupedRows : torch::CustomClassHolder {
  explicit GroupedRows(std::vector<int64_t> of) : counts(std::move(of)) {}
  std::vector<int64_t> counts;
};

/// Calls body(expert, first row, number of rows) for each expert that has rows.
template <class Body>
void each_group(const std::vector<int64_t>& counts, const Body& body) {
  int64_t begin = 0;
  for (std::size_t expert = 0; expert < counts.size(); ++expert) {
    if (counts[expert] > 0) body(static_cast<int64_t>(expert), begin, counts[expert]);
    begin += counts[expert];
  }
}

/// A GPU in 16 bits multiplies all groups by one kernel, whose rows must be aligned to 16 bytes.
bool has_grouped_kernel(const at::Tensor& x, const at::Tensor& weight) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && x.size(0) > 0 &&
         weight.size(1) % 8 == 0 && weight.size(2) % 8 == 0;
}

/// Where each group ends, as the kernel wants it.
at::Tensor ends_of(const std::vector<int64_t>& counts, c10::Device device) {
  std::vector<int> ends(counts.size());
  std::partial_sum(counts.begin(), counts.end(), ends.begin());
  return at::tensor(ends, at::kInt).to(device);
}

at::Tensor grouped_forward(const at::Tensor& x, const at::Tensor& weight,
                           const std::vector<int64_t>& counts) {
  if (has_grouped_kernel(x, weight))
    return at::_grouped_mm(x.contiguous(), weight.transpose(1, 2), ends_of(counts, x.device()));
  at::Tensor y = at::empty({x.size(0), weight.size(1)}, x.options());
  each_group(counts, [&](int64_t expert, int64_t begin, int64_t rows) {
    at::Tensor part = y.narrow(0, begin, rows);
    at::mm_out(part, x.narrow(0, begin, rows), weight[expert].t());
  });
  return y;
}

at::Tensor grouped_input_gradient(const at::Tensor& dy, const at::Tensor& weight,
                                  const std::vector<int64_t>& counts) {
  if (has_grouped_kernel(dy, weight))
    return at::_grouped_mm(dy.contiguous(), weight, ends_of(counts, dy.device()));
  at::Tensor dx = at::empty({dy.size(0), weight.size(2)}, dy.options());
  each_group(counts, [&](int64_t expert, int64_t begin, int64_t rows) {
    at::Tensor part = dx.narrow(0, begin, rows);
    at::mm_out(part, dy.narrow(0, begin, rows), weight[expert]);
  });
  return dx;
}

at::Tensor grouped_weight_gradient(const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& weight, const std::vector<int64_t>& counts) {
  const bool at_once = has_grouped_kernel(x, weight);
  at::Tensor dw =
      at_once ? at::_grouped_mm(dy.contiguous().t(), x.contiguous(), ends_of(counts, x.device()))
              : at::empty(weight.sizes(), weight.options().requires_grad(false));
  // Not every version of the kernel writes the gradient of an expert without rows.
  for (std::size_t expert = 0; expert < counts.size(); ++expert)
    if (counts[expert] == 0) dw[static_cast<int64_t>(expert)].zero_();
  if (at_once) return dw;
  each_group(counts, [&](int64_t expert, int64_t begin, int64_t rows) {
    at::Tensor part = dw[expert];
    at::mm_out(part, dy.narrow(0, begin, rows).t(), x.narrow(0, begin, rows));
  });
  return dw;
}

/// The same by operations that can be differentiated again.
at::Tensor grouped_in_graph(const at::Tensor& x, const at::Tensor& weight,
                            const std::vector<int64_t>& counts) {
  std::vector<at::Tensor> parts = {x.narrow(0, 0, 0).matmul(weight[0].t())};
  each_group(counts, [&](int64_t expert, int64_t begin, int64_t rows) {
    parts.push_back(at::mm(x.narrow(0, begin, rows), weight[expert].t()));
  });
  return at::cat(parts);
}

struct GroupedLinearFunction : torch::autograd::Function<GroupedLinearFunction> {
  using Variables = torch::autograd::variable_list;

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, c10::intrusive_ptr<GroupedRows> rows) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["rows"] = c10::IValue::make_capsule(rows);
    context->save_for_backward({x, weight});
    return grouped_forward(x, weight, rows->counts);
  }

  static Variables backward(torch::autograd::AutogradContext* context, Variables gradients) {
    const auto rows =
        c10::static_intrusive_pointer_cast<GroupedRows>(context->saved_data["rows"].toCapsule());
    const Variables saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &dy = gradients[0];
    if (at::GradMode::is_enabled()) {
      std::vector<at::Tensor> of_weight(rows->counts.size(), at::zeros_like(weight[0]));
      each_group(rows->counts, [&](int64_t expert, int64_t begin, int64_t count) {
        of_weight[static_cast<std::size_t>(expert)] =
            at::mm(dy.narrow(0, begin, count).t(), x.narrow(0, begin, count));
      });
      return {grouped_in_graph(dy, weight.transpose(1, 2), rows->counts), at::stack(of_weight), {}};
    }
    const at::Tensor by = dy.contiguous();
    Variables all(3);
    if (context->needs_input_grad(0)) all[0] = grouped_input_gradient(by, weight, rows->counts);
    if (context->needs_input_grad(1)) all[1] = grouped_weight_gradient(by, x, weight, rows->counts);
    return all;
  }
};

}  // namespace

at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight,
                          const std::vector<int64_t>& counts) {
  core::check(static_cast<int64_t>(counts.size()) == weight.size(0) &&
                  std::accumulate(counts.begin(), counts.end(), int64_t{0}) == x.size(0),
              "grouped_linear: {} rows and counts of {} experts do not fit {} experts", x.size(0),
              counts.size(), weight.size(0));
  return GroupedLinearFunction::apply(x, weight, c10::make_intrusive<GroupedRows>(counts));
}

}  // namespace trireme::nn
