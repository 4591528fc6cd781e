#include "trireme/parallel/fully_sharded.h"

#include <algorithm>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/parallel/compressed_reducer.h"
#include "trireme/parallel/precision.h"
#include "trireme/parallel/replicas.h"

namespace trireme::parallel {

FullySharded::FullySharded(torch::nn::Module& module, const Mesh& mesh, FullyShardedOptions options)
    : AttachedModule(
          module, mesh,
          options.reducer != nullptr ? options.reducer : make_reducer(mesh, options.compress),
          options.precision),
      all_(nn::parameters_of(module)),
      policy_{.sharding = options.sharding, .precision = std::move(options.precision)} {
  using Gathered = FullyShardedOptions::Gathered;
  core::check(options.ahead >= 0, "FullySharded: {} units cannot be gathered ahead", options.ahead);
  core::check(options.sharding != Sharding::None,
              "FullySharded: Sharding::None shards nothing; use DataParallel");
  // libtorch runs all backwards of a device on one thread of the process. Ranks that are threads
  // and gather weights there would wait for each other for ever.
  const int sharers = position_in(gradient_sums_of(Layout({1}), mesh.degrees(), policy_).shards,
                                  mesh.coord(), mesh.degrees())
                          .count;
  core::check(mesh.device().is_cpu() || mesh.world().backend() != "local" || sharers == 1,
              "FullySharded: ranks that are threads of one process cannot share a model on a GPU; "
              "use processes (comm.backend \"shm\"), or the CPU");
  check_cut_on(module, mesh);
  check_same_module(module, mesh.world());
  broadcast_parameters(module, mesh, *reducer_);
  const bool for_a_step = options.gathered == Gathered::ForAStep;
  if (keeps_weights_whole())
    weights_ = std::make_unique<WholeWeights>(all_, find_units(module, all_, mesh.degrees()), mesh,
                                              policy_, options.gathers);
  else
    weights_ = std::make_unique<GatheredWeights>(
        all_, find_units(module, all_, mesh.degrees()), mesh, policy_,
        GatheredWeights::Options{
            .hold_all = for_a_step, .ahead = options.ahead, .narrow = options.gathers});
  for (std::size_t i = 0; i < all_.size(); ++i)
    if (all_[i].tensor.requires_grad()) trained_.push_back(i);
  gradients_ = make_gradients(options.sharding == Sharding::Optimizer || for_a_step);
}

/// The gradients of the trained parameters, which end as shards. `whole`: every gradient has its
/// own memory until the end of the step.
std::unique_ptr<Gradients> FullySharded::make_gradients(bool whole) {
  std::vector<nn::Parameter> parameters;
  std::vector<ParameterShard> shards;
  for (std::size_t i : trained_) {
    const ShardedParameter& cut = weights_->shards()[i];
    for (std::size_t b = 0; b < cut.boxes.size(); ++b)
      if (cut.boxes[b].piece.count > 0)
        shards.push_back(box_shard(all_[i], parameters.size(), cut, b, weights_->tensors()[i][b],
                                   weights_->masters()[i][b]));
    parameters.push_back(all_[i]);
  }
  std::vector<std::string> units;
  for (const Unit& unit : weights_->units().units) units.push_back(unit.name);
  const auto make = [&](const GradientSums& sums,
                        const std::vector<std::size_t>& members) -> std::unique_ptr<Buckets> {
    std::vector<UnitMember> list;
    for (std::size_t n : members) {
      const std::size_t i = trained_[n];
      const ShardedParameter& cut = weights_->shards()[i];
      list.push_back({all_[i].tensor, cut, weights_->units().unit_of[i]});
      for (const ShardedBox& box : cut.boxes) {
        list.back().places.push_back(place_of(cut, box, mesh_));
        list.back().shard_places.push_back(shard_place_of(cut, box));
      }
    }
    std::unique_ptr<UnitBuckets> made;
    if (whole)
      made = std::make_unique<WholeUnitBuckets>(reducer_, sums, std::move(list), units);
    else
      made = std::make_unique<ScatteredBuckets>(reducer_, sums, std::move(list), units);
    buckets_.push_back(made.get());
    return made;
  };
  return std::make_unique<Gradients>(std::move(parameters), std::move(shards), mesh_, policy_,
                                     make);
}

FullySharded::~FullySharded() = default;

void FullySharded::begin_backward() {
  // Backward reaches the units in the opposite order of forward.
  if (!std::exchange(ordered_, true))
    for (UnitBuckets* one : buckets_) one->set_unit_order(weights_->backward_order());
  weights_->complete_held();
}

void FullySharded::discard() {
  AttachedModule::discard();
  weights_->forget_uses();
  weights_->end_pass();
}

void FullySharded::collect(Micro micro, const std::function<void()>& body) {
  begin_backward();
  gradients_->collect(micro, body);
  weights_->end_pass();
}

std::vector<nn::WeightJob> FullySharded::defer(nn::WeightQueue& queue,
                                               const std::function<void()>& body) {
  begin_backward();
  auto jobs = gradients_->defer(queue, body);
  weights_->end_pass();
  return jobs;
}

void FullySharded::start_finish() {
  if (std::exchange(finishing_, true)) return;
  weights_->start_check();
  gradients_->start_rest();
}

void FullySharded::check_step() {
  finishing_ = false;
  weights_->end_check();
}

std::vector<ParameterShard> FullySharded::shared() const {
  if (keeps_weights_whole()) {  // every rank has whole weights, not only its shards
    weights_->complete_update();
    std::vector<ParameterShard> whole;
    for (const nn::Parameter& one : all_)
      whole.push_back(whole_shard(one, whole.size(), mesh_, Policy{}));
    return whole;
  }
  std::vector<ParameterShard> all = gradients_->shards();
  for (ParameterShard& one : frozen()) all.push_back(std::move(one));
  return all;
}

std::vector<ParameterShard> FullySharded::frozen() const {
  std::vector<ParameterShard> result;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (is_trained(i)) continue;
    const ShardedParameter& cut = weights_->shards()[i];
    for (std::size_t b = 0; b < cut.boxes.size(); ++b)
      if (cut.boxes[b].piece.count > 0)
        result.push_back(
            box_shard(all_[i], i, cut, b, weights_->tensors()[i][b], weights_->masters()[i][b]));
  }
  return result;
}

bool FullySharded::is_trained(std::size_t parameter) const {
  return std::find(trained_.begin(), trained_.end(), parameter) != trained_.end();
}

std::vector<Attached::ParameterValue> FullySharded::frozen_values() {
  std::vector<ParameterValue> all;
  for (std::size_t i = 0; i < all_.size(); ++i)
    if (!is_trained(i)) all.push_back({all_[i], weights_->assemble(i, weights_->masters()[i])});
  return all;
}

at::Tensor FullySharded::value(std::size_t parameter) {
  const std::size_t i = trained_[parameter];
  return weights_->assemble(i, weights_->masters()[i]);
}

at::Tensor FullySharded::gradient(std::size_t parameter) {
  const std::size_t i = trained_[parameter];
  // A rank without a piece does not know whether there is a gradient; the first rank has a piece of
  // every box.
  std::vector<at::Tensor> parts;
  bool there = false;
  const at::ScalarType dtype = scalar_type_of(weights_->shards()[i].dtypes.gradient());
  for (const at::Tensor& master : weights_->masters()[i]) {
    there = there || master.grad().defined();
    parts.push_back(master.grad().defined() ? master.grad() : at::zeros_like(master, dtype));
  }
  at::Tensor known = at::tensor({there ? 1 : 0}, at::kLong);
  const auto sharers = gradient_sums_of(all_[i].layout, mesh_.degrees(), policy_).shards;
  reducer_->group(sharers).all_reduce(known, comm::ReduceOp::Max).wait();
  return known.item<int64_t>() == 0 ? at::Tensor() : weights_->assemble(i, parts);
}

}  // namespace trireme::parallel
