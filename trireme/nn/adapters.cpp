#include "trireme/nn/adapters.h"

#include <fmt/ranges.h>

#include "trireme/core/error.h"
#include "trireme/layout/reduction.h"
#include "trireme/nn/bind.h"

namespace trireme::nn {

namespace {

using NamedLinears = std::vector<std::pair<std::string, std::shared_ptr<LinearImpl>>>;

NamedLinears linears_of(const torch::nn::Module& model) {
  NamedLinears found;
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    if (auto linear = std::dynamic_pointer_cast<LinearImpl>(item.value()))
      found.emplace_back(item.key(), std::move(linear));
  return found;
}

[[noreturn]] void refuse(const torch::nn::Module& model, const NamedLinears& linears,
                         const std::string& pattern) {
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    if (matches_name(pattern, item.key()))
      throw MisuseError(
          fmt::format("adapters: \"{}\" matches '{}', a {}, but only an nn::Linear can have one",
                      pattern, item.key(), item.value()->name()));
  std::vector<std::string> names;
  for (const auto& [name, linear] : linears) names.push_back(name);
  throw MisuseError(fmt::format("adapters: \"{}\" matches no nn::Linear; there are {}", pattern,
                                fmt::join(names, ", ")));
}

/// Makes a part of an adapter like its layer: on the same device, in the same dtype, of the same
/// seed.
void make_alike(const LinearImpl& base, LinearImpl& part) {
  move_to(part, base.weight.scalar_type(), base.weight.device());
  if (base.declared().is_initialized()) part.declared().set_seed(base.declared().seed());
}

}  // namespace

void LinearImpl::add_adapter(int64_t rank, double scale) {
  core::check(!has_adapter(), "'{}' has an adapter already", full_name());
  core::check(rank >= 1, "an adapter of rank {}: it must be at least 1", rank);
  const Style of_in = style() == Style::Column ? Style::Positions : style();
  const Style of_out = style() == Style::Row ? Style::Positions : style();
  adapter_.in = register_module(
      "lora_A", std::make_shared<LinearImpl>(
                    in_, rank, Options{.bias = false, .in_sections = options_.in_sections}));
  adapter_.out = register_module(
      "lora_B", std::make_shared<LinearImpl>(
                    rank, out_, Options{.bias = false, .out_sections = options_.out_sections}));
  adapter_.out->init_rule("weight") = InitRule::zeros();
  adapter_.scale = scale;
  cut_beside(*adapter_.in, of_in, *this, "weight");
  cut_beside(*adapter_.out, of_out, *this, "weight");
}

std::vector<std::shared_ptr<LinearImpl>> LinearImpl::adapter() const {
  if (!has_adapter()) return {};
  return {adapter_.in, adapter_.out};
}

/// y + B (scale A x). The Linear of B adds y on its way.
at::Tensor LinearImpl::adapted(const Flow& in, const at::Tensor& y) const {
  Flow x = in.first();
  if (in.tensors.size() > 2) {  // {gelu(z), z, residual}: only z is differentiable
    x = gelu_from(Flow(std::vector{in.tensors[0], in.tensors[1]}, in.where));
    x.remake = in.remake;
  }
  const Flow narrow = adapter_.in->forward(std::move(x));
  const at::Tensor scaled = adapter_.scale == 1 ? narrow.x() : narrow.x() * adapter_.scale;
  return adapter_.out->forward(Flow(std::vector{scaled, y}, narrow.where)).x();
}

std::vector<std::string> add_adapters(torch::nn::Module& model, const AdapterOptions& options) {
  if (const auto there = adapted_layers(model); !there.empty())
    throw MisuseError(fmt::format("adapters: '{}' has an adapter already", there.front().first));
  const NamedLinears linears = linears_of(model);
  std::vector<bool> chosen(linears.size());
  for (const std::string& pattern : options.targets) {
    bool used = false;
    for (std::size_t i = 0; i < linears.size(); ++i) {
      if (!matches_name(pattern, linears[i].first)) continue;
      used = chosen[i] = true;
    }
    if (!used) refuse(model, linears, pattern);
  }
  for (const at::Tensor& one : model.parameters()) one.set_requires_grad(false);
  const double scale = options.alpha > 0 ? options.alpha / static_cast<double>(options.rank) : 1;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < linears.size(); ++i) {
    if (!chosen[i]) continue;
    linears[i].second->add_adapter(options.rank, scale);
    for (const auto& part : linears[i].second->adapter()) make_alike(*linears[i].second, *part);
    names.push_back(linears[i].first);
  }
  name_layers(model);
  for (const Parameter& one : parameters_of(model))
    if (one.tensor.requires_grad() && one.init && is_bound(one.tensor)) fill(one);
  return names;
}

std::vector<std::pair<std::string, std::shared_ptr<LinearImpl>>> adapted_layers(
    const torch::nn::Module& model) {
  NamedLinears all = linears_of(model);
  std::erase_if(all, [](const auto& one) { return !one.second->has_adapter(); });
  return all;
}

void merge_adapters(torch::nn::Module& model) {
  const at::NoGradGuard guard;
  for (const auto& [name, linear] : adapted_layers(model)) {
    const auto parts = linear->adapter();
    for (const LinearImpl* one : {linear.get(), parts[0].get(), parts[1].get()})
      check_bound(one->weight, name);
    const at::Tensor moved = parts[1]->weight.to(at::kDouble).mm(parts[0]->weight.to(at::kDouble));
    linear->weight.copy_(linear->weight.to(at::kDouble).add_(moved, linear->adapter_scale()));
    parts[1]->weight.zero_();
  }
}

}  // namespace trireme::nn
