#include "trireme/nn/plan.h"

#include <fmt/ranges.h>

#include "trireme/core/error.h"

namespace trireme::nn {

namespace {

struct Wanted {
  std::string name;
  LayerImpl* layer;
  std::size_t pattern;  // its number in the plan
};

[[noreturn]] void refuse(const Plan& plan, std::size_t pattern, const std::string& why) {
  throw MisuseError(fmt::format("plan: \"{}\" ({}) {}", plan[pattern].first,
                                to_string(plan[pattern].second), why));
}

std::vector<Wanted> resolve(const torch::nn::Module& root, const Plan& plan) {
  std::vector<Wanted> all;
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
               fmt::format("and \"{}\" ({}) both match '{}'; let one of them", plan[*chosen].first,
                           to_string(plan[*chosen].second), item.key()));
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

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] != '*')
    return !name.empty() && pattern[0] == name[0] && matches(pattern.substr(1), name.substr(1));
  for (std::size_t taken = 0;; ++taken) {
    if (matches(pattern.substr(1), name.substr(taken))) return true;
    if (taken == name.size() || name[taken] == '.') return false;
  }
}

void cut(torch::nn::Module& root, const Plan& plan, const Mesh& mesh, Sequence sequence) {
  const auto wanted = resolve(root, plan);
  // libtorch runs backward of a device on one thread of the process: ranks that are threads and
  // wait for each other in it would wait for ever.
  core::check(
      mesh.size(Axis::Tensor) == 1 || !mesh.device().is_cuda() || mesh.world().backend() != "local",
      "plan: ranks that are threads of one process cannot share layers on a GPU; use "
      "processes (comm.backend \"shm\")");
  const auto region = c10::make_intrusive<Region>(mesh.group(Axis::Tensor), sequence);
  const auto each = [&](const auto& body) {
    for (const Wanted& one : wanted) {
      try {
        body(*one.layer, plan[one.pattern].second);
      } catch (const MisuseError& error) {
        refuse(plan, one.pattern, fmt::format("cannot cut '{}': {}", one.name, error.what()));
      }
    }
  };
  each([&](LayerImpl& layer, Style style) { layer.check_cut(style, mesh); });
  each([&](LayerImpl& layer, Style style) { layer.cut(style, mesh, region); });
}

}  // namespace trireme::nn
