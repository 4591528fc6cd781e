#include "trireme/nn/exchange.h"

#include <ATen/ops/empty.h>
#include <torch/autograd.h>

#include <numeric>
#include <utility>

namespace trireme::nn::functional {

namespace {

using Context = torch::autograd::AutogradContext;
using Variables = torch::autograd::variable_list;

ExchangeRows reversed(const ExchangeRows& rows) {
  return {rows.received, rows.sent, rows.group};
}

/// Room for what comes.
at::Tensor room_for(const at::Tensor& x, const comm::Rows& rows) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  return at::empty(shape, x.options().requires_grad(false));
}

struct ExchangeArgs : torch::CustomClassHolder {
  explicit ExchangeArgs(ExchangeRows of) : rows(std::move(of)) {}
  ExchangeRows rows;
};

struct ExchangeFunction : torch::autograd::Function<ExchangeFunction> {
  static at::Tensor forward(Context* context, const at::Tensor& x,
                            c10::intrusive_ptr<ExchangeArgs> args) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["args"] = c10::IValue::make_capsule(args);
    at::Tensor out = room_for(x, args->rows.received);
    args->rows.group.all_to_all(out, x.contiguous(), args->rows.received, args->rows.sent).wait();
    return out;
  }
  static Variables backward(Context* context, Variables gradients) {
    const auto args =
        c10::static_intrusive_pointer_cast<ExchangeArgs>(context->saved_data["args"].toCapsule());
    return {exchange(gradients[0], reversed(args->rows)), {}};
  }
};

}  // namespace

/// What `start` and `wait` share: the operation that is in flight, forward or backward.
struct ExchangeInFlight::Travel {
  explicit Travel(ExchangeRows of) : rows(std::move(of)) {}

  void start(const at::Tensor& x, const comm::Rows& to, const comm::Rows& from) {
    arriving = room_for(x, from);
    sending = x.contiguous();
    work = rows.group.all_to_all(arriving, sending, from, to);
  }
  at::Tensor finish() {
    comm::Work under_way = std::move(work);
    const at::Tensor sent = std::exchange(sending, at::Tensor());
    at::Tensor came = std::exchange(arriving, at::Tensor());
    under_way.wait();
    return came;
  }

  ExchangeRows rows;
  at::Tensor sending, arriving;
  comm::Work work;
};

/// A Travel, as a graph keeps it.
struct ExchangeInFlight::TravelBox : torch::CustomClassHolder {
  explicit TravelBox(std::shared_ptr<Travel> of) : travel(std::move(of)) {}
  static Travel& in(Context* context) {
    return *c10::static_intrusive_pointer_cast<TravelBox>(context->saved_data["travel"].toCapsule())
                ->travel;
  }
  std::shared_ptr<Travel> travel;
};

/// Returns memory that is not filled yet: only `Wait` may take it. In backward the gradients arrive
/// in the Travel; what `Wait` hands to `Start` has the shape that autograd expects, and is not
/// read.
struct ExchangeInFlight::Start : torch::autograd::Function<Start> {
  static at::Tensor forward(Context* context, const at::Tensor& x,
                            c10::intrusive_ptr<TravelBox> box) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["travel"] = c10::IValue::make_capsule(box);
    Travel& travel = *box->travel;
    travel.start(x, travel.rows.sent, travel.rows.received);
    // Another tensor of the same memory: this one becomes a part of the graph, which holds the
    // Travel. The Travel must not hold the graph.
    return travel.arriving.detach();
  }
  static Variables backward(Context* context, Variables) {
    return {TravelBox::in(context).finish(), {}};
  }
};

struct ExchangeInFlight::Wait : torch::autograd::Function<Wait> {
  static at::Tensor forward(Context* context, const at::Tensor& x,
                            c10::intrusive_ptr<TravelBox> box) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["travel"] = c10::IValue::make_capsule(box);
    box->travel->finish();
    return x.view_as(x);
  }
  static Variables backward(Context* context, Variables gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "a gradient of a gradient (create_graph) cannot travel while experts compute; set "
                "comm.overlap_experts=false");
    Travel& travel = TravelBox::in(context);
    travel.start(gradients[0], travel.rows.received, travel.rows.sent);
    return {gradients[0], {}};
  }
};

ExchangeInFlight::ExchangeInFlight(const at::Tensor& x, const ExchangeRows& rows)
    : travel_(std::make_shared<Travel>(rows)),
      out_(Start::apply(x, c10::make_intrusive<TravelBox>(travel_))) {}

at::Tensor ExchangeInFlight::wait() {
  return Wait::apply(std::exchange(out_, at::Tensor()), c10::make_intrusive<TravelBox>(travel_));
}

at::Tensor exchange(const at::Tensor& x, const ExchangeRows& rows) {
  if (rows.group.size() == 1) return x;
  return ExchangeFunction::apply(x, c10::make_intrusive<ExchangeArgs>(rows));
}

}  // namespace trireme::nn::functional
