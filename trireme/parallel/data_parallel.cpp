#include "trireme/parallel/data_parallel.h"

#include <algorithm>

#include "trireme/nn/bind.h"
#include "trireme/parallel/compressed_reducer.h"
#include "trireme/parallel/precision.h"
#include "trireme/parallel/replicas.h"

namespace trireme::parallel {

namespace {

std::vector<nn::Parameter> trained(const torch::nn::Module& module) {
  std::vector<nn::Parameter> all = nn::parameters_of(module);
  std::erase_if(all, [](const nn::Parameter& one) { return !one.tensor.requires_grad(); });
  return all;
}

}  // namespace

DataParallel::DataParallel(torch::nn::Module& module, const Mesh& mesh, DataParallelOptions options)
    : AttachedModule(
          module, mesh,
          options.reducer != nullptr ? options.reducer : make_reducer(mesh, options.compress),
          std::move(options.precision)) {
  check_cut_on(module, mesh);
  check_same_module(module, mesh.world());
  broadcast_parameters(module, mesh, *reducer_);
  make_masters();
  const auto all = trained(module);
  const auto shards = whole_shards(all);
  const auto make = [&](const GradientSums& sums, const std::vector<std::size_t>& members) {
    std::vector<BucketMember> list;
    for (std::size_t i : members)
      list.push_back({all[i].tensor, dtypes_of(all[i], precision_), place_of(shards[i], mesh)});
    return std::make_unique<ReducedBuckets>(reducer_, sums.all, std::move(list), options.buckets);
  };
  gradients_ = std::make_unique<Gradients>(all, shards, mesh, Policy{}, make);
}

/// Where weight and master have different dtypes, the parameter's memory becomes the master, and
/// the parameter gets new memory for the weight.
void DataParallel::make_masters() {
  const at::NoGradGuard guard;
  for (const nn::Parameter& one : nn::parameters_of(module_)) {
    const ParameterDtypes dtypes = dtypes_of(one, precision_);
    if (dtypes.master != dtypes.compute) {
      weights_.push_back(one.tensor);
      at::Tensor master = one.tensor.detach().to(scalar_type_of(dtypes.master));
      if (precision_.masters_on_host && master.is_cuda()) master = master.cpu().pin_memory();
      masters_.push_back(master.requires_grad_(one.tensor.requires_grad()));
    }
    nn::set_dtype(one.tensor, scalar_type_of(dtypes.compute));
  }
}

at::Tensor DataParallel::master_of(const at::Tensor& weight) const {
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if (weights_[i].is_same(weight)) return masters_[i];
  return weight;
}

std::vector<ParameterShard> DataParallel::whole_shards(
    const std::vector<nn::Parameter>& parameters) const {
  std::vector<ParameterShard> all;
  for (const nn::Parameter& one : parameters)
    all.push_back(
        whole_shard(one, all.size(), mesh_, {.precision = precision_}, master_of(one.tensor)));
  return all;
}

void DataParallel::pass_on(Weights weights) {
  if (weights == Weights::Rounded) return;
  const at::NoGradGuard guard;
  for (std::size_t i = 0; i < weights_.size(); ++i) weights_[i].detach().copy_(masters_[i]);
}

std::vector<ParameterShard> DataParallel::shared() const {
  std::vector<ParameterShard> all = gradients_->shards();
  for (ParameterShard& one : frozen()) all.push_back(std::move(one));
  return all;
}

std::vector<nn::Parameter> DataParallel::frozen_parameters() const {
  auto all = nn::parameters_of(module_);
  const auto& others = gradients_->parameters();
  std::erase_if(all, [&](const nn::Parameter& one) {
    return std::any_of(others.begin(), others.end(), [&](const nn::Parameter& other) {
      return other.tensor.is_same(one.tensor);
    });
  });
  return all;
}

std::vector<ParameterShard> DataParallel::frozen() const {
  return whole_shards(frozen_parameters());
}

std::vector<Attached::ParameterValue> DataParallel::frozen_values() {
  std::vector<ParameterValue> all;
  for (const nn::Parameter& one : frozen_parameters())
    all.push_back({one, master_of(one.tensor).detach()});
  return all;
}

at::Tensor DataParallel::value(std::size_t parameter) {
  return master_of(gradients_->parameters()[parameter].tensor).detach();
}

at::Tensor DataParallel::gradient(std::size_t parameter) {
  return master_of(gradients_->parameters()[parameter].tensor).grad();
}

}  // namespace trireme::parallel
