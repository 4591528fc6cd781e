#include "trireme/nn/plan.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/router.h"

namespace trireme::nn {

namespace {

struct PlannedLayer {
  std::string name;
  LayerImpl* layer;
  std::size_t pattern;  // its index in the plan
};

[[noreturn]] void refuse(const Plan& plan, std::size_t pattern, const std::string& why) {
  throw MisuseError(fmt::format("plan: \"{}\" ({}) {}", plan[pattern].first,
                                to_string(plan[pattern].second), why));
}

/// Finds the layers that the patterns match, and refuses a plan that is ambiguous or matches
/// nothing.
std::vector<PlannedLayer> resolve(const torch::nn::Module& root, const Plan& plan) {
  std::vector<PlannedLayer> all;
  std::vector<bool> used(plan.size());
  std::vector<std::string> names;
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    names.push_back(item.key());
    auto* layer = dynamic_cast<LayerImpl*>(item.value().get());
    std::optional<std::size_t> chosen;
    for (std::size_t i = 0; i < plan.size(); ++i) {
      if (!matches(plan[i].first, item.key())) continue;
      used[i] = true;
      if (chosen && plan[*chosen].second != plan[i].second)
        refuse(plan, i,
               fmt::format("and \"{}\" ({}) both match '{}'; let only one of them match",
                           plan[*chosen].first, to_string(plan[*chosen].second), item.key()));
      if (!chosen) chosen = i;
    }
    if (!chosen) continue;
    if (layer == nullptr)
      refuse(
          plan, *chosen,
          fmt::format("matches '{}', a {}, which cannot be cut; build it from trireme::nn layers "
                      "(nn::Linear instead of torch::nn::Linear)",
                      item.key(), item.value()->name()));
    all.push_back({item.key(), layer, *chosen});
  }
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (!used[i])
      refuse(plan, i, fmt::format("matches no layer; there are {}", fmt::join(names, ", ")));
  }
  return all;
}

}  // namespace

/// Compares character by character; for a `*` it tries every length up to the next dot.
bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] != '*')
    return !name.empty() && pattern[0] == name[0] && matches(pattern.substr(1), name.substr(1));
  for (std::size_t taken = 0;; ++taken) {
    if (matches(pattern.substr(1), name.substr(taken))) return true;
    if (taken == name.size() || name[taken] == '.') return false;
  }
}

namespace {

void share_sequences(torch::nn::Module& root, const Mesh& mesh, ContextKind kind) {
  if (mesh.size(Axis::Context) == 1) return;
  for (const auto& item : root.named_modules("", /*include_self=*/false))
    if (auto* attention = dynamic_cast<CausalAttentionImpl*>(item.value().get()))
      attention->share_sequence({mesh.group(Axis::Context), kind}, mesh.size(Axis::Tensor));
}

/// A router counts whole sequences, so it must know which ranks have parts of one.
void refuse_unplanned_routers(const torch::nn::Module& root,
                              const std::vector<PlannedLayer>& planned, const Mesh& mesh) {
  if (mesh.size(Axis::Context) == 1 && mesh.size(Axis::Tensor) == 1) return;
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    const auto* router = dynamic_cast<const RouterImpl*>(item.value().get());
    const auto is_it = [&](const PlannedLayer& one) { return one.layer == router; };
    core::check(router == nullptr || std::ranges::any_of(planned, is_it),
                "plan: no pattern matches the router '{}', so its losses and its capacity would "
                "count parts of sequences on {}; add {{\"{}\", Style::Positions}}",
                item.key(), to_string(mesh.degrees()), item.key());
  }
}

}  // namespace

void cut(torch::nn::Module& root, const Plan& plan, const Mesh& mesh, Sequence sequence,
         ContextKind context) {
  const auto wanted = resolve(root, plan);
  // libtorch runs the backward of a GPU on one thread of the process. Ranks that are threads of it
  // and wait for each other in backward would wait forever.
  core::check((mesh.size(Axis::Tensor) == 1 && mesh.size(Axis::Context) == 1 &&
               mesh.size(Axis::Expert) == 1) ||
                  !mesh.device().is_cuda() || mesh.world().backend() != "local",
              "plan: ranks that are threads of one process cannot share layers on a GPU; use "
              "processes (comm.backend \"shm\")");
  const auto region = c10::make_intrusive<TensorRegion>(mesh.group(Axis::Tensor), sequence);
  const auto shared = std::make_shared<const Mesh>(mesh);
  const auto each = [&](const auto& body) {
    for (const PlannedLayer& one : wanted) {
      try {
        body(*one.layer, plan[one.pattern].second);
      } catch (const MisuseError& error) {
        refuse(plan, one.pattern, fmt::format("cannot cut '{}': {}", one.name, error.what()));
      }
    }
  };
  each([&](LayerImpl& layer, Style style) { check_cut(layer, style, mesh); });
  refuse_unplanned_routers(root, wanted, mesh);
  share_sequences(root, mesh, context);
  each([&](LayerImpl& layer, Style style) { cut_layer(layer, style, shared, region); });
}

}  // namespace trireme::nn
