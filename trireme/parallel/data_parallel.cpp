#include "trireme/parallel/data_parallel.h"

#include <algorithm>

#include "trireme/parallel/replicas.h"

namespace trireme::parallel {

namespace {

/// Before anything is attached: the same model everywhere, with the same values.
torch::nn::Module& made_equal(torch::nn::Module& module, const Mesh& mesh) {
  check_cut_on(module, mesh);
  check_same_module(module, mesh.world());
  broadcast_parameters(module, mesh);
  return module;
}

}  // namespace

DataParallel::DataParallel(torch::nn::Module& module, const Mesh& mesh, DataParallelOptions options)
    : AttachedModule(made_equal(module, mesh)),
      mesh_(mesh),
      gradients_(module, mesh, options.buckets) {}

Totals DataParallel::finish(std::span<const double> values, Divide divide) {
  const Totals totals = gradients_.finish(values, divide);
  broadcast_buffers(module_, mesh_.world());
  return totals;
}

void DataParallel::check_same() const {
  check_same_values(shared(), buffers(), mesh_.world());
}

std::vector<Kept> DataParallel::shared() const {
  std::vector<Kept> all = gradients_.kept();
  for (Kept& one : frozen()) all.push_back(std::move(one));
  return all;
}

std::vector<nn::Parameter> DataParallel::frozen_parameters() const {
  auto all = nn::parameters_of(module_);
  const auto& trained = gradients_.parameters();
  std::erase_if(all, [&](const nn::Parameter& one) {
    return std::any_of(trained.begin(), trained.end(), [&](const nn::Parameter& other) {
      return other.tensor.is_same(one.tensor);
    });
  });
  return all;
}

std::vector<Kept> DataParallel::frozen() const {
  std::vector<Kept> result;
  for (const nn::Parameter& one : frozen_parameters())
    result.push_back(keep_whole(one, result.size(), mesh_));
  return result;
}

std::vector<Attached::Value> DataParallel::frozen_values() {
  std::vector<Value> all;
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
