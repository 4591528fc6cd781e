#include "trireme/nn/chain.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>

#include "trireme/core/error.h"
#include "trireme/nn/bind.h"
#include "trireme/nn/parameters.h"

namespace trireme::nn {

namespace {

using ParametersByTensor = std::map<const void*, const Parameter*>;

/// Registers a layer under its full name, below plain modules that stand for its parents.
void register_by_full_name(torch::nn::Module& root, const std::shared_ptr<LayerImpl>& layer) {
  torch::nn::Module* at = &root;
  std::istringstream path(layer->full_name());
  std::string name, next;
  std::getline(path, name, '.');
  for (; std::getline(path, next, '.'); name = next) {
    const auto children = at->named_children();
    const auto* below = children.find(name);
    at = below != nullptr
             ? below->get()
             : at->register_module(name, std::make_shared<torch::nn::Module>(name)).get();
  }
  at->register_module(name, layer);
}

/// Finds the tied parameters of a layer, which have another name in the whole model, and records in
/// the layer which ones they are.
void record_tied(const ParametersByTensor& whole, const LayerImpl& layer) {
  for (const auto& item : layer.named_modules(layer.full_name())) {
    for (const auto& own : item.value()->named_parameters(/*recurse=*/false)) {
      const Parameter& one = *whole.at(own.value().unsafeGetTensorImpl());
      if (one.name == item.key() + "." + own.key()) continue;
      auto* holder = dynamic_cast<LayerImpl*>(item.value().get());
      core::check(holder != nullptr,
                  "'{}.{}' is tied to '{}' inside of a torch module, which cannot record that; "
                  "tie it in a trireme::nn layer",
                  item.key(), own.key(), one.name);
      holder->declared().set_tied_to(own.key(), one);
    }
  }
}

}  // namespace

Flow Link::forward(Flow in) const {
  if (run) return run(std::move(in));
  for (const auto& layer : layers) in = layer->forward(std::move(in));
  return in;
}

std::vector<int> Chain::places() const {
  std::vector<int> counts;
  for (const Link& link : links)
    counts.push_back(std::max(1, static_cast<int>(link.inside.size())));
  counts.push_back(1);
  return counts;
}

std::size_t Chain::size() const {
  const auto counts = places();
  return static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), 0));
}

std::vector<const Link*> Chain::between(std::size_t begin, std::size_t end) const {
  std::vector<const Link*> found;
  std::size_t place = 0;
  for (const Link& link : links) {
    const std::size_t first = place;
    place += std::max<std::size_t>(1, link.inside.size());
    if (begin <= first && place <= end) {
      found.push_back(&link);
      continue;
    }
    for (std::size_t i = 0; i < link.inside.size(); ++i)
      if (begin <= first + i && first + i < end) found.push_back(&link.inside[i]);
  }
  return found;
}

std::vector<const Link*> Chain::all_between(std::size_t begin, std::size_t end) const {
  auto found = between(begin, end);
  if (end == size()) found.push_back(&head);
  return found;
}

std::shared_ptr<torch::nn::Module> part_of_model(
    const torch::nn::Module& whole, const std::vector<std::shared_ptr<LayerImpl>>& layers) {
  const auto parameters = parameters_of(whole);
  ParametersByTensor by_tensor;
  for (const Parameter& one : parameters) by_tensor[one.tensor.unsafeGetTensorImpl()] = &one;
  auto part = std::make_shared<torch::nn::Module>(whole.name());
  for (const auto& layer : layers) {
    core::check(!layer->full_name().empty(),
                "a layer of the chain has no name: register it below the model, and call "
                "nn::initialize or nn::name_layers on the model first");
    record_tied(by_tensor, *layer);
    register_by_full_name(*part, layer);
  }
  return part;
}

void materialize(torch::nn::Module& module) {
  for (const Parameter& one : parameters_of(module)) {
    if (is_bound(one.tensor)) continue;
    core::check(one.init.has_value(), "'{}' has neither values nor a rule that initializes it",
                one.name);
    bind(one.tensor, at::empty(one.tensor.sizes(), one.tensor.options().requires_grad(false)));
    fill(one);
  }
}

}  // namespace trireme::nn
