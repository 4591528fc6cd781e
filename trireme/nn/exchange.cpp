#include "trireme/nn/exchange.h"

#include <ATen/ops/empty.h>
#include <torch/autograd.h>

#include <numeric>

namespace trireme::nn::functional {

namespace {

struct ExchangeArgs : torch::CustomClassHolder {
  ExchangeArgs(comm::Rows to, comm::Rows from, comm::Communicator over)
      : sent(std::move(to)), received(std::move(from)), group(std::move(over)) {}
  comm::Rows sent, received;
  comm::Communicator group;
};
using ExchangeArgsPtr = c10::intrusive_ptr<ExchangeArgs>;

struct ExchangeFunction : torch::autograd::Function<ExchangeFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            ExchangeArgsPtr args) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["args"] = c10::IValue::make_capsule(args);
    std::vector<int64_t> shape = x.sizes().vec();
    shape[0] = std::accumulate(args->received.begin(), args->received.end(), int64_t{0});
    at::Tensor out = at::empty(shape, x.options());
    args->group.all_to_all(out, x.contiguous(), args->received, args->sent).wait();
    return out;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto args =
        c10::static_intrusive_pointer_cast<ExchangeArgs>(context->saved_data["args"].toCapsule());
    return {exchange(gradients[0], args->received, args->sent, args->group), {}};
  }
};

}  // namespace

at::Tensor exchange(const at::Tensor& x, const comm::Rows& sent, const comm::Rows& received,
                    const comm::Communicator& group) {
  if (group.size() == 1) return x;
  return ExchangeFunction::apply(x, c10::make_intrusive<ExchangeArgs>(sent, received, group));
}

}  // namespace trireme::nn::functional
