#include "trireme/nn/recompute.h"

#include <torch/autograd.h>

#include <algorithm>

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

/// What the second forward needs, carried by the graph.
struct Again : torch::CustomClassHolder {
  LayerImpl::Call call;
  std::shared_ptr<const Where> where, where_after;
  std::vector<at::Tensor> buffers, before;  // the layer's; their values at the first forward
};

/// While it lives, buffers have the values of the first forward. Their version does not change: a
/// graph that has saved one would refuse to run.
class BuffersAsBefore {
 public:
  explicit BuffersAsBefore(const Again& again) : again_(again) {
    for (std::size_t i = 0; i < again.buffers.size(); ++i) {
      now_.push_back(again.buffers[i].detach().clone());
      again.buffers[i].variable_data().copy_(again.before[i]);
    }
  }
  ~BuffersAsBefore() {
    for (std::size_t i = 0; i < now_.size(); ++i) again_.buffers[i].variable_data().copy_(now_[i]);
  }
  BuffersAsBefore(const BuffersAsBefore&) = delete;
  BuffersAsBefore& operator=(const BuffersAsBefore&) = delete;

 private:
  const Again& again_;
  std::vector<at::Tensor> now_;
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
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "recompute: a gradient of a gradient (create_graph) needs the graph that was not "
                "kept; do not recompute this layer");
    const auto again =
        c10::static_intrusive_pointer_cast<Again>(context->saved_data["again"].toCapsule());
    ag::variable_list inputs;
    for (const at::Tensor& saved : context->get_saved_variables())
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
    ag::variable_list outputs;
    {
      const BuffersAsBefore buffers(*again);
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

bool needs_gradient(const at::Tensor& one) {
  return one.defined() && one.requires_grad();
}

/// Of the layers that a call uses.
struct Used {
  std::vector<at::Tensor> parameters, buffers;
};

Flow call_recomputed(Flow in, const LayerImpl::Call& call, const Used& used) {
  if (!at::GradMode::is_enabled() ||
      (std::none_of(in.tensors.begin(), in.tensors.end(), needs_gradient) &&
       std::none_of(used.parameters.begin(), used.parameters.end(), needs_gradient)))
    return call(std::move(in));
  auto again = c10::make_intrusive<Again>();
  again->call = call;
  again->where = in.where;
  again->buffers = used.buffers;
  for (const at::Tensor& one : used.buffers) again->before.push_back(one.detach().clone());
  const auto graph = at::empty({0}, in.x().options().dtype(at::kFloat)).requires_grad_();
  ag::variable_list out = Recompute::apply(again, graph, at::TensorList(in.tensors));
  return {std::move(out), again->where_after};
}

}  // namespace

void recompute(LayerImpl& layer) {
  layer.around(Seam::Recompute, [&layer](Flow in, const LayerImpl::Call& inner) {
    return call_recomputed(std::move(in), inner, {layer.parameters(), layer.buffers()});
  });
}

Flow recomputed(Flow in, const LayerImpl::Call& call,
                const std::vector<std::shared_ptr<LayerImpl>>& layers) {
  Used used;
  for (const auto& layer : layers) {
    for (at::Tensor& one : layer->parameters()) used.parameters.push_back(std::move(one));
    for (at::Tensor& one : layer->buffers()) used.buffers.push_back(std::move(one));
  }
  return call_recomputed(std::move(in), call, used);
}

}  // namespace trireme::nn
