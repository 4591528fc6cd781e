#include "trireme/parallel/units.h"

#include <algorithm>
#include <array>
#include <map>

#include "trireme/core/error.h"
#include "trireme/layout/reduction.h"

namespace trireme::parallel {

namespace {

using NamedLayers = std::vector<std::pair<std::string, nn::LayerImpl*>>;

void refuse_own(const torch::nn::Module& module, const std::string& name) {
  const auto own = module.named_parameters(/*recurse=*/false);
  if (own.is_empty()) return;
  throw MisuseError(fmt::format(
      "parameter '{}{}' belongs to no layer below the root, so that no layer's call tells when to "
      "gather "
      "it; declare it in a trireme::nn layer of its own (or wrap its module by nn::as_layer)",
      name.empty() ? "" : name + ".", own.front().key()));
}

/// Finds the layers nearest to the root.
void collect(torch::nn::Module& module, const std::string& name, NamedLayers& found) {
  const bool is_list = dynamic_cast<nn::SequentialImpl*>(&module) != nullptr;
  auto* layer = dynamic_cast<nn::LayerImpl*>(&module);
  if (layer != nullptr && !is_list && !name.empty()) {
    found.emplace_back(name, layer);
    return;
  }
  refuse_own(module, name);
  for (const auto& child : module.named_children())
    collect(*child.value(), name.empty() ? child.key() : name + "." + child.key(), found);
}

bool is_dealt(const Layout& layout, const Degrees& degrees) {
  return gradient_sums_of(layout, degrees, {}).all.same_experts;
}

}  // namespace

Units find_units(torch::nn::Module& root, const std::vector<nn::Parameter>& parameters,
                 const Degrees& degrees) {
  NamedLayers layers;
  auto* const alone = dynamic_cast<nn::LayerImpl*>(&root);
  if (alone != nullptr && root.named_children().is_empty())
    layers.emplace_back(".", alone);  // a single layer
  else
    collect(root, "", layers);

  for (const auto& [name, layer] : layers)
    for (const auto& [other_name, other] : layers)
      for (const auto& below : other->modules(/*include_self=*/false))
        core::check(below.get() != layer,
                    "layer '{}' is also inside of '{}': it would be released while that layer "
                    "still runs; register it in one place",
                    name, other_name);

  std::map<const void*, std::size_t> index;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    index[parameters[i].tensor.unsafeGetTensorImpl()] = i;
  Units result;
  constexpr auto kNone = static_cast<std::size_t>(-1);
  result.unit_of.assign(parameters.size(), kNone);
  for (const auto& [name, layer] : layers) {
    UnitUser user{layer, {}};
    std::array<std::size_t, 2> number = {kNone, kNone};  // of the layer's unit, of its experts'
    for (const at::Tensor& tensor : layer->parameters()) {
      const std::size_t i = index.at(tensor.unsafeGetTensorImpl());
      if (result.unit_of[i] == kNone) {
        const bool expert = is_dealt(parameters[i].layout, degrees);
        std::size_t& unit = number[expert ? 1 : 0];
        if (unit == kNone) {
          unit = result.units.size();
          result.units.push_back({expert ? name + " (experts)" : name, {}, expert});
        }
        result.unit_of[i] = unit;
        result.units[unit].parameters.push_back(i);
      }
      const auto seen = std::find(user.units.begin(), user.units.end(), result.unit_of[i]);
      if (seen == user.units.end()) user.units.push_back(result.unit_of[i]);
    }
    if (!user.units.empty()) result.users.push_back(std::move(user));
  }
  return result;
}

}  // namespace trireme::parallel
