#include "trireme/parallel/data_parallel.h"

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
    : module_(made_equal(module, mesh)),
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
  check_same_values(module_, mesh_);
}

}  // namespace trireme::parallel
