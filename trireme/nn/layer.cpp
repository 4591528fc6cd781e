#include "trireme/nn/layer.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme::nn {

Flow LayerImpl::forward(Flow in) {
  Call call = [this](const Flow& flow) { return compute(flow); };
  for (const auto& [kind, hook] : hooks_) {
    call = [&hook, inner = std::move(call)](Flow flow) { return hook(std::move(flow), inner); };
  }
  return call(std::move(in));
}

void LayerImpl::around(Seam kind, Hook hook) {
  // Innermost first: Unshard, then Recompute, then Profile.
  const auto place = std::find_if(hooks_.begin(), hooks_.end(),
                                  [&](const auto& other) { return other.first < kind; });
  hooks_.insert(place, {kind, std::move(hook)});
}

at::Tensor LayerImpl::compute(const at::Tensor&, const Where*) {
  throw MisuseError(fmt::format("layer '{}' ({}) computes nothing: write compute(x, where)",
                                full_name_, torch::nn::Module::name()));
}

Flow LayerImpl::compute(const Flow& in) {
  return in.with(compute(in.x(), in.where.get()));
}

at::Tensor LayerImpl::parameter(const std::string& name, std::vector<int64_t> shape,
                                InitRule init) {
  at::Tensor made = register_parameter(name, at::empty(shape));
  declared_.emplace(name, Declared{Layout(std::move(shape)), init});
  return made;
}

at::Tensor LayerImpl::tied(const std::string& name, const at::Tensor& other) {
  return register_parameter(name, other);
}

const LayerImpl::Declared* LayerImpl::declared(const std::string& parameter) const {
  const auto found = declared_.find(parameter);
  return found == declared_.end() ? nullptr : &found->second;
}

InitRule& LayerImpl::init_rule(const std::string& parameter) {
  const auto found = declared_.find(parameter);
  core::check(found != declared_.end(), "layer '{}' has no parameter '{}' of its own", full_name_,
              parameter);
  return found->second.init;
}

void name_layers(torch::nn::Module& root) {
  if (auto* layer = dynamic_cast<LayerImpl*>(&root); layer != nullptr && layer->full_name_.empty())
    layer->full_name_ = ".";
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    auto* layer = dynamic_cast<LayerImpl*>(item.value().get());
    if (layer != nullptr && layer->full_name_.empty()) layer->full_name_ = item.key();
  }
}

SequentialImpl::SequentialImpl(const std::vector<std::shared_ptr<LayerImpl>>& layers) {
  for (const auto& layer : layers) push_back(layer);
}

void SequentialImpl::push_back(std::shared_ptr<LayerImpl> layer) {
  layers_.push_back(register_module(std::to_string(layers_.size()), std::move(layer)));
}

Flow SequentialImpl::compute(const Flow& in) {
  Flow flow = in;
  for (const auto& layer : layers_) flow = layer->forward(std::move(flow));
  return flow;
}

}  // namespace trireme::nn
