#include "trireme/nn/recompute.h"

#include <torch/autograd.h>

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

/// What the second forward needs, carried by the graph.
struct Again : torch::CustomClassHolder {
  LayerImpl::Call call;
  std::shared_ptr<const Where> where, where_after;
};

struct Recompute : ag::Function<Recompute> {
  static ag::variable_list forward(ag::AutogradContext* context, c10::intrusive_ptr<Again> again,
                                   const at::Tensor& /*graph: makes the output need a gradient*/,
                                   at::TensorList inputs) {
    context->save_for_backward(inputs.vec());
    context->saved_data["again"] = c10::IValue::make_capsule(again);
    const at::NoGradGuard guard;
    Flow out = again->call(Flow(inputs.vec(), again->where));
    again->where_after = out.where;
    return out.tensors;
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    const auto again =
        c10::static_intrusive_pointer_cast<Again>(context->saved_data["again"].toCapsule());
    ag::variable_list inputs;
    for (const at::Tensor& saved : context->get_saved_variables())
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
    ag::variable_list outputs;
    {
      const at::AutoGradMode on(true);
      Where where = again->where != nullptr ? *again->where : Where{};
      where.again = true;
      outputs = again->call(Flow(inputs, std::make_shared<const Where>(std::move(where)))).tensors;
    }
    ag::variable_list roots, seeds;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
      roots.push_back(outputs[i]);
      seeds.push_back(gradients[i]);
    }
    if (!roots.empty()) ag::backward(roots, seeds);
    ag::variable_list result(2);  // of `again` and `graph`
    for (const at::Tensor& input : inputs) result.push_back(input.grad());
    return result;
  }
};

}  // namespace

void recompute(LayerImpl& layer) {
  layer.around(Seam::Recompute, [](Flow in, const LayerImpl::Call& inner) -> Flow {
    if (!at::GradMode::is_enabled()) return inner(std::move(in));
    auto again = c10::make_intrusive<Again>();
    again->call = inner;
    again->where = in.where;
    const auto graph = at::empty({0}, in.x().options().dtype(at::kFloat)).requires_grad_();
    ag::variable_list out = Recompute::apply(again, graph, at::TensorList(in.tensors));
    return {std::move(out), again->where_after};
  });
}

}  // namespace trireme::nn
