#include "trireme/nn/recompute.h"

#include <torch/autograd.h>

#include <algorithm>

#include "trireme/nn/rms_norm.h"
#include "trireme/nn/swiglu.h"

namespace trireme::nn {

namespace {

namespace ag = torch::autograd;

/// What the autograd graph keeps of the first forward, for the second.
struct FirstForward : torch::CustomClassHolder {
  FlowFunction call;
  std::shared_ptr<const Where> where, where_after;
  std::vector<at::Tensor> buffers, buffer_values;  // of the layer, and what they were
};

thread_local int recomputing_calls = 0;

/// As long as it exists, `is_recomputing`.
struct Recomputing {
  Recomputing() { ++recomputing_calls; }
  ~Recomputing() { --recomputing_calls; }
  Recomputing(const Recomputing&) = delete;
  Recomputing& operator=(const Recomputing&) = delete;
};

/// As long as it exists, the buffers have the values of the first forward. It does not change their
/// version, because autograd refuses to use a saved tensor whose version has changed.
class RestoredBuffers {
 public:
  explicit RestoredBuffers(const FirstForward& first) : first_(first) {
    for (std::size_t i = 0; i < first.buffers.size(); ++i) {
      now_.push_back(first.buffers[i].detach().clone());
      first.buffers[i].variable_data().copy_(first.buffer_values[i]);
    }
  }
  ~RestoredBuffers() {
    for (std::size_t i = 0; i < now_.size(); ++i) first_.buffers[i].variable_data().copy_(now_[i]);
  }
  RestoredBuffers(const RestoredBuffers&) = delete;
  RestoredBuffers& operator=(const RestoredBuffers&) = delete;

 private:
  const FirstForward& first_;
  std::vector<at::Tensor> now_;
};

struct RecomputeFunction : ag::Function<RecomputeFunction> {
  static ag::variable_list forward(ag::AutogradContext* context,
                                   c10::intrusive_ptr<FirstForward> first,
                                   const at::Tensor& /*makes the output require a gradient*/,
                                   at::TensorList inputs) {
    context->save_for_backward(inputs.vec());
    context->saved_data["first"] = c10::IValue::make_capsule(first);
    const at::NoGradGuard guard;
    Flow out = first->call(Flow(inputs.vec(), first->where));
    first->where_after = out.where;
    return out.tensors;
  }

  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "recompute: a gradient of a gradient (create_graph) needs the graph, which was not "
                "kept; do not recompute this layer");
    const auto first =
        c10::static_intrusive_pointer_cast<FirstForward>(context->saved_data["first"].toCapsule());
    ag::variable_list inputs;
    for (const at::Tensor& saved : context->get_saved_variables())
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
    ag::variable_list outputs;
    {
      const RestoredBuffers buffers(*first);
      const Recomputing again;
      const at::AutoGradMode on(true);
      Where where = first->where != nullptr ? *first->where : Where{};
      where.recomputing = true;
      outputs = first->call(Flow(inputs, std::make_shared<const Where>(std::move(where)))).tensors;
    }
    ag::variable_list roots, seeds;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
      roots.push_back(outputs[i]);
      seeds.push_back(gradients[i]);
    }
    if (!roots.empty()) ag::backward(roots, seeds);
    ag::variable_list result(2);  // for the arguments before `inputs`
    for (const at::Tensor& input : inputs) result.push_back(input.grad());
    return result;
  }
};

bool needs_gradient(const at::Tensor& one) {
  return one.defined() && one.requires_grad();
}

/// The tensors of the layers that a call uses.
struct UsedTensors {
  std::vector<at::Tensor> parameters, buffers;
};

Flow call_recomputed(Flow in, const FlowFunction& call, const UsedTensors& used) {
  if (!at::GradMode::is_enabled() ||
      (std::none_of(in.tensors.begin(), in.tensors.end(), needs_gradient) &&
       std::none_of(used.parameters.begin(), used.parameters.end(), needs_gradient)))
    return call(std::move(in));
  auto first = c10::make_intrusive<FirstForward>();
  first->call = call;
  first->where = in.where;
  first->buffers = used.buffers;
  for (const at::Tensor& one : used.buffers) first->buffer_values.push_back(one.detach().clone());
  const auto graph = at::empty({0}, in.x().options().dtype(at::kFloat)).requires_grad_();
  ag::variable_list out = RecomputeFunction::apply(first, graph, at::TensorList(in.tensors));
  return {std::move(out), first->where_after};
}

}  // namespace

bool is_recomputing() {
  return recomputing_calls > 0;
}

void recompute(LayerImpl& layer, RecomputeSwitchPtr when) {
  layer.around(Seam::Recompute, [&layer, when](Flow in, const LayerImpl::Call& inner) {
    if (when != nullptr && !when->on) return inner(std::move(in));
    return call_recomputed(std::move(in), inner.run, {layer.parameters(), layer.buffers()});
  });
}

Flow recomputed(Flow in, const FlowFunction& call,
                const std::vector<std::shared_ptr<LayerImpl>>& layers) {
  UsedTensors used;
  for (const auto& layer : layers) {
    for (at::Tensor& one : layer->parameters()) used.parameters.push_back(std::move(one));
    for (at::Tensor& one : layer->buffers()) used.buffers.push_back(std::move(one));
  }
  return call_recomputed(std::move(in), call, used);
}

void recompute_cheaply(torch::nn::Module& model, WeightsLater weights) {
  model.apply([&](torch::nn::Module& one) {
    if (auto* norm = dynamic_cast<LayerNormImpl*>(&one)) norm->remake_output(weights);
    if (auto* norm = dynamic_cast<RmsNormImpl*>(&one)) norm->remake_output(weights);
    if (auto* linear = dynamic_cast<LinearImpl*>(&one)) linear->remake_output();
    if (auto* gate = dynamic_cast<SwiGluImpl*>(&one)) gate->remake_output();
  });
}

}  // namespace trireme::nn
