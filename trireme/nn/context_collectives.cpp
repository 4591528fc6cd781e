#include "trireme/nn/context_collectives.h"

#include <torch/autograd.h>

#include <numeric>

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

int64_t sum_of(const comm::Rows& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

struct RowsContext : torch::CustomClassHolder {
  RowsContext(comm::Communicator over, comm::Rows first, comm::Rows second = {})
      : group(std::move(over)), to(std::move(first)), from(std::move(second)) {}
  comm::Communicator group;
  comm::Rows to, from;
};
using RowsContextPtr = c10::intrusive_ptr<RowsContext>;

RowsContextPtr context_of(ag::AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<RowsContext>(context->saved_data["rows"].toCapsule());
}

std::vector<int64_t> with_rows(const at::Tensor& x, int64_t rows) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = rows;
  return shape;
}

struct GatherRows : ag::Function<GatherRows> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x,
                            RowsContextPtr rows) {
    context->saved_data["rows"] = c10::IValue::make_capsule(rows);
    const at::Tensor all = at::empty(with_rows(x, sum_of(rows->to)), x.options());
    if (all.numel() > 0) rows->group.all_gather(all, x.contiguous(), rows->to).wait();
    return all;
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients);
};

/// The opposite.
struct ScatterRows : ag::Function<ScatterRows> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x,
                            RowsContextPtr rows) {
    context->saved_data["rows"] = c10::IValue::make_capsule(rows);
    const int64_t mine = rows->to[static_cast<std::size_t>(rows->group.rank())];
    const at::Tensor sum = at::empty(with_rows(x, mine), x.options());
    if (x.numel() > 0)
      rows->group.reduce_scatter(sum, x.contiguous(), comm::ReduceOp::Sum, rows->to).wait();
    return sum;
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    return {GatherRows::apply(gradients[0], context_of(context)), {}};
  }
};

ag::variable_list GatherRows::backward(ag::AutogradContext* context, ag::variable_list gradients) {
  return {ScatterRows::apply(gradients[0], context_of(context)), {}};
}

struct ExchangeRows : ag::Function<ExchangeRows> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x,
                            RowsContextPtr rows) {
    context->saved_data["rows"] = c10::IValue::make_capsule(rows);
    const at::Tensor out = at::empty({sum_of(rows->from)}, x.options());
    rows->group.all_to_all(out, x.contiguous(), rows->from, rows->to).wait();
    return out;
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const RowsContextPtr rows = context_of(context);
    return {
        apply(gradients[0], c10::make_intrusive<RowsContext>(rows->group, rows->from, rows->to)),
        {}};
  }
};

}  // namespace

at::Tensor gather_rows(const at::Tensor& x, const comm::Communicator& group,
                       const comm::Rows& rows) {
  return GatherRows::apply(x, c10::make_intrusive<RowsContext>(group, rows));
}

at::Tensor exchange(const at::Tensor& x, const comm::Communicator& group, const comm::Rows& to,
                    const comm::Rows& from) {
  return ExchangeRows::apply(x, c10::make_intrusive<RowsContext>(group, to, from));
}

comm::Rows counts_of(const std::vector<Positions>& ranks) {
  comm::Rows counts;
  for (const Positions& one : ranks) counts.push_back(one.count());
  return counts;
}

at::Tensor in_order(const std::vector<Positions>& ranks, c10::Device device) {
  std::vector<int64_t> order(static_cast<std::size_t>(ranks.empty() ? 0 : ranks.front().whole()));
  int64_t column = 0;
  for (const Positions& one : ranks)
    for (const int64_t position : one.each()) order[static_cast<std::size_t>(position)] = column++;
  return at::tensor(order, at::kLong).to(device);
}

}  // namespace trireme::nn
