#include "trireme/nn/layer.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/nn/bind.h"

namespace trireme::nn {

namespace {

at::Tensor make_memory(at::IntArrayRef shape, at::TensorOptions options, bool deferred) {
  if (!deferred) return at::empty(shape, options);
  return unbound(shape, options,
                 "a parameter has no memory yet: it was built under nn::Deferred, and nothing has "
                 "given it any (parallel::FullySharded does)");
}

}  // namespace

Flow LayerImpl::forward(Flow in) {
  if (in.where != nullptr && in.where->cut_from && style_ == Style::Whole && !declared_.empty())
    throw MisuseError(fmt::format(
        "layer '{}' ({}) has parameters and was given a part of the positions: its gradients would "
        "not be summed over the ranks; name it as Positions in the plan",
        full_name_, torch::nn::Module::name()));
  Call call = [this](const Flow& flow) {
    check_weights();
    return compute(flow);
  };
  for (const auto& [kind, hook] : hooks_) {
    call = [&hook, inner = std::move(call)](Flow flow) { return hook(std::move(flow), inner); };
  }
  return call(std::move(in));
}

bool LayerImpl::has_hook(Seam kind) const {
  return std::any_of(hooks_.begin(), hooks_.end(),
                     [kind](const auto& hook) { return hook.first == kind; });
}

Flow LayerImpl::with_weights(Flow in, const Call& body, bool backward_reads) {
  struct Restore {
    bool &flag, before = flag;
    ~Restore() { flag = before; }
  } const restore{backward_reads_weights_};
  backward_reads_weights_ = backward_reads;
  Call call = [&](const Flow& flow) {
    check_weights();
    return body(flow);
  };
  for (const auto& [kind, hook] : hooks_) {
    if (kind != Seam::Unshard) continue;
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
  at::Tensor made = register_parameter(name, make_memory(shape, {}, Deferred::on()));
  own_.emplace_back(name, made);
  declared_.emplace(name, Declared{Layout(std::move(shape)), init});
  return made;
}

at::Tensor LayerImpl::tied(const std::string& name, const at::Tensor& other) {
  own_.emplace_back(name, other);
  return register_parameter(name, other);
}

/// Not every libtorch notices that a weight has no memory.
void LayerImpl::check_weights() const {
  for (const auto& [name, tensor] : own_)
    if (!is_bound(tensor)) check_bound(tensor, full_name_ + "." + name);
}

const LayerImpl::Declared* LayerImpl::declared(const std::string& parameter) const {
  const auto found = declared_.find(parameter);
  return found == declared_.end() ? nullptr : &found->second;
}

void LayerImpl::adopt(const std::string& parameter, Parameter known_as) {
  adopted_.insert_or_assign(parameter, std::move(known_as));
}

const Parameter* LayerImpl::adopted(const std::string& parameter) const {
  const auto found = adopted_.find(parameter);
  return found == adopted_.end() ? nullptr : &found->second;
}

InitRule& LayerImpl::init_rule(const std::string& parameter) {
  const auto found = declared_.find(parameter);
  core::check(found != declared_.end(), "layer '{}' has no parameter '{}' of its own", full_name_,
              parameter);
  return found->second.init;
}

std::map<std::string, Layout> LayerImpl::layouts(Style style, Sequence sequence) const {
  core::check(style == Style::Whole || style == Style::Positions || style == Style::Inside,
              "a {} cannot be cut by {}; it can be whole, inside, or work on positions",
              torch::nn::Module::name(), to_string(style));
  const bool is_partial =
      style == Style::Inside || (style == Style::Positions && sequence == Sequence::Cut);
  const auto partial = is_partial ? std::vector{Axis::Tensor} : std::vector<Axis>{};
  std::map<std::string, Layout> all;
  for (const auto& [name, declared] : declared_)
    all.emplace(name, Layout(declared.layout.whole(), {}, partial));
  return all;
}

void LayerImpl::check_cut(Style style, const Mesh& mesh) const {
  core::check(region_ == nullptr, "it is cut already, by {}", to_string(style_));
  core::check(!initialized_, "it has its values already; cut before nn::initialize");
  core::check(style == Style::Whole || style == Style::Positions || buffers().empty() ||
                  mesh.size(Axis::Tensor) == 1,
              "it has buffers, which are whole on every rank; cut by {} they would not be",
              to_string(style));
  for (const auto& [name, layout] : layouts(style, Sequence::Whole))
    layout.check_fits(mesh.degrees());
}

void LayerImpl::cut(Style style, const Mesh& mesh, RegionPtr region) {
  const Sequence sequence = region->cuts_positions() ? Sequence::Cut : Sequence::Whole;
  for (auto& [name, layout] : layouts(style, sequence)) {
    Declared& declared = declared_.at(name);
    declared.layout = layout;
    declared.coord = mesh.coord();
    declared.degrees = mesh.degrees();
    at::Tensor tensor = named_parameters(/*recurse=*/false)[name];
    const auto shape = layout.local_shape(mesh.coord(), mesh.degrees());
    // The parameter stays who it is, for those that share it.
    if (tensor.sizes() != shape)
      tensor.set_data(make_memory(shape, tensor.options().requires_grad(false), !is_bound(tensor)));
  }
  style_ = style;
  region_ = std::move(region);
}

LayerImpl::Output LayerImpl::output() const {
  if (output_) return *output_;
  if (region_ != nullptr && style_ == Style::Inside) return std::nullopt;
  std::vector<Cut> cuts;
  if (region_ != nullptr)
    if (auto features = feature_cut()) cuts.push_back(std::move(*features));
  return cuts;
}

LayerImpl::Output SequentialImpl::output() const {
  return layers_.empty() ? LayerImpl::output() : layers_.back()->output();
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

}  // namespace trireme::nn
