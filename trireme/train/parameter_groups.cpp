#include "trireme/train/parameter_groups.h"

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/layout/reduction.h"
#include "trireme/optim/optimizer.h"

namespace trireme::train {

namespace {

/// The index of the parameter's group; the number of groups if it has none.
std::size_t group_of(const std::vector<config::ParameterGroup>& groups, const std::string& name) {
  const auto found = std::ranges::find_if(
      groups, [&](const auto& group) { return matches_name(group.match, name); });
  return static_cast<std::size_t>(found - groups.begin());
}

}  // namespace

Recipe recipe_of(const config::Optim& keys, const nn::Parameter& parameter) {
  Recipe recipe{.rate = 1, .weight_decay = keys.weight_decay};
  if (const std::size_t i = group_of(keys.groups, parameter.name); i < keys.groups.size()) {
    const config::ParameterGroup& group = keys.groups[i];
    if (group.lr && *group.lr != keys.lr) recipe.rate = *group.lr / keys.lr;
    recipe.weight_decay = group.weight_decay.value_or(keys.weight_decay);
  }
  if (!optim::is_decayed(parameter.layout.whole())) recipe.weight_decay = 0;
  return recipe;
}

void check_groups(const config::Optim& keys, const std::vector<nn::Parameter>& all) {
  std::vector<bool> has(keys.groups.size() + 1);
  for (const nn::Parameter& one : all) has[group_of(keys.groups, one.name)] = true;
  for (std::size_t i = 0; i < keys.groups.size(); ++i) {
    if (has[i] || all.empty()) continue;
    const std::string& pattern = keys.groups[i].match;
    const auto taken = std::ranges::find_if(
        all, [&](const nn::Parameter& one) { return matches_name(pattern, one.name); });
    if (taken == all.end())
      throw ConfigError(fmt::format(
          "optim.groups[{}]: match = \"{}\" matches no parameter; there are {}, ..., {}", i,
          pattern, all.front().name, all.back().name));
    throw ConfigError(fmt::format(
        "optim.groups[{}]: match = \"{}\" matches only parameters that an earlier group has, such "
        "as {} (\"{}\"); the first group that matches has it, so put this one before",
        i, pattern, taken->name, keys.groups[group_of(keys.groups, taken->name)].match));
  }
}

}  // namespace trireme::train
