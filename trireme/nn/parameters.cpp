#include "trireme/nn/parameters.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <numbers>
#include <set>

#include "trireme/core/error.h"
#include "trireme/core/hash.h"
#include "trireme/core/philox.h"
#include "trireme/nn/layer.h"

namespace trireme::nn {

namespace {

constexpr double kTwoToMinus53 = 0x1p-53;

double uniform_of(uint32_t high, uint32_t low) {  // in [0, 1)
  return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * kTwoToMinus53;
}

/// Elements 2k and 2k + 1 of a parameter.
std::array<double, 2> pair_of(const InitRule& rule, uint64_t seed, uint64_t name, int64_t k) {
  if (rule.kind == InitRule::Kind::Constant) return {rule.scale, rule.scale};
  const auto words = core::philox(seed, name, static_cast<uint64_t>(k));
  const double u = uniform_of(words[0], words[1]), v = uniform_of(words[2], words[3]);
  if (rule.kind == InitRule::Kind::Uniform)
    return {(2 * u - 1) * rule.scale, (2 * v - 1) * rule.scale};
  const double radius = rule.scale * std::sqrt(-2 * std::log(1 - u));
  const double angle = 2 * std::numbers::pi * v;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

void fill(at::Tensor& tensor, const InitRule& rule, uint64_t seed, uint64_t name) {
  const int64_t count = tensor.numel();
  at::Tensor values = at::empty({count}, at::kDouble);
  double* to = values.data_ptr<double>();
  at::parallel_for(0, (count + 1) / 2, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const auto two = pair_of(rule, seed, name, k);
      to[2 * k] = two[0];
      if (2 * k + 1 < count) to[2 * k + 1] = two[1];
    }
  });
  const at::NoGradGuard guard;
  tensor.copy_(values.view(tensor.sizes()));
}

}  // namespace

std::vector<Parameter> parameters_of(const torch::nn::Module& root) {
  std::vector<Parameter> found;
  std::set<const void*> seen;
  const auto add_from = [&](const torch::nn::Module& module, const std::string& prefix) {
    const auto* layer = dynamic_cast<const LayerImpl*>(&module);
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      const auto* declared = layer == nullptr ? nullptr : layer->declared(item.key());
      Parameter one{prefix.empty() ? item.key() : prefix + "." + item.key(), item.value(),
                    declared != nullptr ? declared->layout : Layout(item.value().sizes().vec()),
                    std::nullopt};
      if (declared != nullptr) one.init = declared->init;
      found.push_back(std::move(one));
    }
  };
  add_from(root, "");
  for (const auto& item : root.named_modules("", /*include_self=*/false))
    add_from(*item.value(), item.key());
  return found;
}

void initialize(torch::nn::Module& root, uint64_t seed) {
  name_layers(root);
  root.apply([seed](torch::nn::Module& module) {
    if (auto* layer = dynamic_cast<LayerImpl*>(&module)) layer->seed_ = seed;
  });
  for (Parameter& parameter : parameters_of(root)) {
    if (parameter.init) fill(parameter.tensor, *parameter.init, seed, core::hash64(parameter.name));
  }
}

}  // namespace trireme::nn
