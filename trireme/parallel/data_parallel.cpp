#include "trireme/parallel/data_parallel.h"

#include "trireme/parallel/replicas.h"

namespace trireme::parallel {

namespace {

/// Before anything is attached: the same model everywhere, with the same values.
torch::nn::Module& made_equal(torch::nn::Module& module, const comm::Communicator& replicas) {
  check_same_module(module, replicas);
  broadcast_parameters(module, replicas);
  return module;
}

}  // namespace

DataParallel::DataParallel(torch::nn::Module& module, const comm::Communicator& replicas,
                           DataParallelOptions options)
    : module_(made_equal(module, replicas)),
      replicas_(replicas),
      options_(options),
      gradients_(module, replicas, options.buckets) {}

Totals DataParallel::finish(std::span<const double> values, Divide divide) {
  const Totals totals = gradients_.finish(values, divide);
  if (options_.buffers == BufferPolicy::BroadcastEachStep) broadcast_buffers(module_, replicas_);
  return totals;
}

void DataParallel::check_same() const {
  check_same_values(module_, replicas_);
}

}  // namespace trireme::parallel
