#include "trireme/nn/layer.h"

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme::nn {

namespace {

/// Puts a hook around a call. The hook must outlive what it returns.
LayerImpl::Call hooked(const LayerImpl::Hook& hook, LayerImpl::Call inner) {
  const bool backward_reads_weights = inner.backward_reads_weights;
  return {
      .run = [&hook, inner = std::move(inner)](Flow flow) { return hook(std::move(flow), inner); },
      .backward_reads_weights = backward_reads_weights};
}

}  // namespace

Flow LayerImpl::forward(Flow in) {
  if (in.where != nullptr && in.where->cut_from && style() == Style::Whole && !declared_.empty())
    throw MisuseError(fmt::format(
        "layer '{}' ({}) has parameters and was given a part of the positions: its gradients would "
        "not be summed over the ranks; name it as Positions in the plan",
        full_name_, torch::nn::Module::name()));
  Call call{.run =
                [this](const Flow& flow) {
                  declared_.check_memory(full_name_);
                  return compute(flow);
                },
            .backward_reads_weights = backward_reads_weights()};
  for (const auto& [kind, hook] : hooks_) call = hooked(hook, std::move(call));
  return call(std::move(in));
}

Flow LayerImpl::with_weights(Flow in, Call body) {
  Call call{.run =
                [&](Flow flow) {
                  declared_.check_memory(full_name_);
                  return body(std::move(flow));
                },
            .backward_reads_weights = body.backward_reads_weights};
  for (const auto& [kind, hook] : hooks_)
    if (kind >= Seam::Unshard) call = hooked(hook, std::move(call));
  return call(std::move(in));
}

void LayerImpl::around(Seam kind, Hook hook) {
  // Innermost first: Time, then Unshard, Recompute and Profile.
  const auto place = std::find_if(hooks_.begin(), hooks_.end(),
                                  [&](const auto& other) { return other.first < kind; });
  hooks_.insert(place, {kind, std::move(hook)});
}

bool LayerImpl::has_hook(Seam kind) const {
  return std::any_of(hooks_.begin(), hooks_.end(),
                     [kind](const auto& hook) { return hook.first == kind; });
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
  return register_parameter(name, declared_.declare(name, std::move(shape), init));
}

at::Tensor LayerImpl::tied(const std::string& name, const at::Tensor& other) {
  declared_.add_tied(name, other);
  return register_parameter(name, other);
}

InitRule& LayerImpl::init_rule(const std::string& parameter) {
  DeclaredParameter* const found = declared_.find(parameter);
  core::check(found != nullptr, "layer '{}' declares no parameter '{}'", full_name_, parameter);
  return found->init;
}

Layouts LayerImpl::layouts(Style style, Sequence sequence) const {
  return layouts_of_whole(declared_, style, sequence, torch::nn::Module::name());
}

LayerImpl::Output LayerImpl::output() const {
  return cut_.output(region() != nullptr ? feature_cut() : std::nullopt);
}

void throw_foreign(const std::string& layer, std::string_view style) {
  throw MisuseError(
      fmt::format("layer '{}' is a torch module with parameters and cannot be cut ({}); "
                  "build it from trireme::nn layers",
                  layer, style));
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

LayerImpl::Output SequentialImpl::output() const {
  return layers_.empty() ? LayerImpl::output() : layers_.back()->output();
}

}  // namespace trireme::nn
