#include "trireme/nn/token_rows.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/autograd.h>

#include "trireme/nn/parallel_loop.h"
#include "trireme/nn/rows.h"

namespace trireme::nn {

namespace {

constexpr int64_t kTokensAtOnce = 32;  // of a thread at least

struct TokenOrderBox : torch::CustomClassHolder {
  explicit TokenOrderBox(TokenOrder the_order) : order(std::move(the_order)) {}
  TokenOrder order;
};
using TokenOrderPtr = c10::intrusive_ptr<TokenOrderBox>;

TokenOrder order_in(torch::autograd::AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<TokenOrderBox>(context->saved_data["order"].toCapsule())
      ->order;
}

/// Has the CPU loops of its own for these? Elsewhere torch's operations do it.
bool has_loops(const at::Tensor& rows, const at::Tensor& other) {
  return rows.is_cpu() && rows.scalar_type() == other.scalar_type() &&
         (rows.scalar_type() == at::kFloat || rows.scalar_type() == at::kDouble) &&
         !at::GradMode::is_enabled();
}

/// Calls body(token, choice, row) for the choices that have a row, token by token.
template <class Body>
void each_token(const TokenOrder& order, const Body& body) {
  const auto* row_of = order.inverse.const_data_ptr<int64_t>();
  parallel_loop(0, order.tokens, kTokensAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * order.choices; i < end * order.choices; ++i)
      if (row_of[i] >= 0) body(i / order.choices, i, row_of[i]);
  });
}

/// The rows of each token beside each other, [tokens, choices, width]; zeros for what was dropped.
/// (To add rows up where they belong would give other bits in every run on a GPU.)
at::Tensor by_token(const at::Tensor& rows, const TokenOrder& order) {
  const int64_t count = rows.size(0);
  at::Tensor from = rows, places = order.inverse;
  if (count < order.tokens * order.choices) {
    from = at::cat({rows, at::zeros({1, rows.size(1)}, rows.options().requires_grad(false))});
    places = at::where(places < 0, count, places);
  }
  return from.index_select(0, places).view({order.tokens, order.choices, rows.size(1)});
}

/// The sum of the rows of each token; `weights`, [tokens x choices], may be undefined.
at::Tensor summed(const at::Tensor& rows, const at::Tensor& weights, const TokenOrder& order) {
  const int64_t width = rows.size(1);
  at::Tensor sums = at::zeros({order.tokens, width}, rows.options().requires_grad(false));
  const at::Tensor from = rows.contiguous();
  each_float(rows.scalar_type(), [&]<class T>(T) {
    const T* of_rows = from.const_data_ptr<T>();
    const T* scale = weights.defined() ? weights.const_data_ptr<T>() : nullptr;
    T* to = sums.mutable_data_ptr<T>();
    each_token(order, [&](int64_t token, int64_t choice, int64_t row) {
      const T by = scale != nullptr ? scale[choice] : T(1);
      const T* one = of_rows + row * width;
      T* sum = to + token * width;
      for (int64_t i = 0; i < width; ++i) sum[i] += by * one[i];
    });
  });
  return sums;
}

/// The gradients of `weighted_rows`.
struct WeightedGradients {
  at::Tensor rows, weights;
};

WeightedGradients weighted_gradients(const at::Tensor& dy, const at::Tensor& rows,
                                     const at::Tensor& weights, const TokenOrder& order) {
  const int64_t width = rows.size(1);
  WeightedGradients all{at::empty(rows.sizes(), rows.options().requires_grad(false)),
                        at::zeros(weights.sizes(), weights.options().requires_grad(false))};
  const at::Tensor by = dy.contiguous(), from = rows.contiguous(), scales = weights.contiguous();
  each_float(rows.scalar_type(), [&]<class T>(T) {
    const T *of_tokens = by.const_data_ptr<T>(), *of_rows = from.const_data_ptr<T>();
    const T* scale = scales.const_data_ptr<T>();
    T *drows = all.rows.mutable_data_ptr<T>(), *dweights = all.weights.mutable_data_ptr<T>();
    each_token(order, [&](int64_t token, int64_t choice, int64_t row) {
      const T *gradient = of_tokens + token * width, *one = of_rows + row * width;
      T* to = drows + row * width;
      T product = 0;
      for (int64_t i = 0; i < width; ++i) {
        product += gradient[i] * one[i];
        to[i] = scale[choice] * gradient[i];
      }
      dweights[choice] = product;
    });
  });
  return all;
}

struct RowsOfTokens : torch::autograd::Function<RowsOfTokens> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            TokenOrderPtr order) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["order"] = c10::IValue::make_capsule(order);
    return x.index_select(0, order->order.token_of());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const TokenOrder order = order_in(context);
    const at::Tensor& dy = gradients[0];
    if (has_loops(dy, dy)) return {summed(dy, {}, order), {}};
    return {by_token(dy, order).sum(1), {}};
  }
};

struct WeightedRows : torch::autograd::Function<WeightedRows> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weights, TokenOrderPtr box) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["order"] = c10::IValue::make_capsule(box);
    context->save_for_backward({rows, weights});
    const TokenOrder& order = box->order;
    if (has_loops(rows, weights)) return summed(rows, weights.contiguous(), order);
    return (by_token(rows, order).to(weights.scalar_type()) * weights.unsqueeze(2))
        .sum(1)
        .to(rows.scalar_type());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const TokenOrder order = order_in(context);
    const auto saved = context->get_saved_variables();
    const at::Tensor &rows = saved[0], &weights = saved[1], &dy = gradients[0];
    if (has_loops(rows, weights) && dy.scalar_type() == rows.scalar_type()) {
      WeightedGradients all = weighted_gradients(dy, rows, weights, order);
      return {all.rows, all.weights, {}};
    }
    const at::ScalarType wide = weights.scalar_type();
    const at::Tensor of_rows = dy.to(wide).index_select(0, order.token_of());
    const at::Tensor scale = weights.reshape({-1}).index_select(0, order.order);
    const at::Tensor products = (of_rows * rows.to(wide)).sum(1);
    return {(of_rows * scale.unsqueeze(1)).to(rows.scalar_type()),
            by_token(products.unsqueeze(1), order).view(weights.sizes()),
            {}};
  }
};

}  // namespace

TokenOrder::TokenOrder(at::Tensor of_rows, int64_t num_tokens, int64_t per_token)
    : order(std::move(of_rows)), tokens(num_tokens), choices(per_token) {
  inverse = at::full({tokens * choices}, -1, order.options());
  inverse.index_copy_(0, order, at::arange(order.size(0), order.options()));
}

at::Tensor TokenOrder::token_of() const {
  return at::div(order, choices, /*rounding_mode=*/"floor");
}

at::Tensor rows_of_tokens(const at::Tensor& x, const TokenOrder& order) {
  return RowsOfTokens::apply(x, c10::make_intrusive<TokenOrderBox>(order));
}

at::Tensor weighted_rows(const at::Tensor& rows, const at::Tensor& weights,
                         const TokenOrder& order) {
  return WeightedRows::apply(rows, weights, c10::make_intrusive<TokenOrderBox>(order));
}

}  // namespace trireme::nn
