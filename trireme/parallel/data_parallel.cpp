#include "trireme/parallel/data_parallel.h"

#include <algorithm>

#include "trireme/parallel/replicas.h"

namespace trireme::parallel {

namespace {

/// Makes sure that all ranks have the same model with the same values, before anything attaches.
torch::nn::Module& made_equal(torch::nn::Module& module, const Mesh& mesh) {
  check_cut_on(module, mesh);
  check_same_module(module, mesh.world());
  broadcast_parameters(module, mesh);
  return module;
}

std::vector<nn::Parameter> trained(const torch::nn::Module& module) {
  std::vector<nn::Parameter> all = nn::parameters_of(module);
  std::erase_if(all, [](const nn::Parameter& one) { return !one.tensor.requires_grad(); });
  return all;
}

std::vector<ParameterShard> whole_shards(const std::vector<nn::Parameter>& parameters,
                                         const Mesh& mesh) {
  std::vector<ParameterShard> all;
  for (const nn::Parameter& one : parameters)
    all.push_back(whole_shard(one, all.size(), mesh, Policy{}));
  return all;
}

}  // namespace

DataParallel::DataParallel(torch::nn::Module& module, const Mesh& mesh, DataParallelOptions options)
    : AttachedModule(made_equal(module, mesh), mesh, std::move(options.reducer)),
      gradients_(trained(module), whole_shards(trained(module), mesh), mesh, Policy{},
                 [&](const GradientSums& sums, const std::vector<std::size_t>& members) {
                   const auto all = trained(module);
                   std::vector<at::Tensor> tensors;
                   for (std::size_t i : members) tensors.push_back(all[i].tensor);
                   return std::make_unique<ReducedBuckets>(reducer_, sums.all, std::move(tensors),
                                                           options.buckets);
                 }) {}

std::vector<ParameterShard> DataParallel::shared() const {
  std::vector<ParameterShard> all = gradients_.shards();
  for (ParameterShard& one : frozen()) all.push_back(std::move(one));
  return all;
}

std::vector<nn::Parameter> DataParallel::frozen_parameters() const {
  auto all = nn::parameters_of(module_);
  const auto& others = gradients_.parameters();
  std::erase_if(all, [&](const nn::Parameter& one) {
    return std::any_of(others.begin(), others.end(), [&](const nn::Parameter& other) {
      return other.tensor.is_same(one.tensor);
    });
  });
  return all;
}

std::vector<ParameterShard> DataParallel::frozen() const {
  return whole_shards(frozen_parameters(), mesh_);
}

std::vector<Attached::ParameterValue> DataParallel::frozen_values() {
  std::vector<ParameterValue> all;
  for (const nn::Parameter& one : frozen_parameters()) all.push_back({one, one.tensor.detach()});
  return all;
}

at::Tensor DataParallel::value(std::size_t parameter) {
  return gradients_.parameters()[parameter].tensor.detach();
}

at::Tensor DataParallel::gradient(std::size_t parameter) {
  return gradients_.parameters()[parameter].tensor.grad();
}

}  // namespace trireme::parallel
