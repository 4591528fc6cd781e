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
      options_(options),
      gradients_(module, mesh, options.buckets) {}

Totals DataParallel::finish(std::span<const double> values, Divide divide) {
  const Totals totals = gradients_.finish(values, divide);
  if (options_.buffers == BufferPolicy::BroadcastEachStep)
    broadcast_buffers(module_, mesh_.world());
  return totals;
}

void DataParallel::check_same() const {
  std::vector<Kept> all = gradients_.kept();
  for (Kept& one : frozen()) all.push_back(std::move(one));
  check_same_values(all, mesh_);
}

std::vector<Kept> DataParallel::frozen() const {
  std::vector<Kept> result;
  const auto all = nn::parameters_of(module_);
  const auto& trained = gradients_.parameters();
  for (std::size_t i = 0; i < all.size(); ++i)
    if (std::none_of(trained.begin(), trained.end(),
                     [&](const nn::Parameter& one) { return one.tensor.is_same(all[i].tensor); }))
      result.push_back(keep_whole(all[i], i, mesh_));
  return result;
}

at::Tensor DataParallel::value(std::size_t parameter) {
  return gradients_.parameters()[parameter].tensor.detach();
}

at::Tensor DataParallel::gradient(std::size_t parameter) {
  return gradients_.parameters()[parameter].tensor.grad();
}

}  // namespace trireme::parallel
