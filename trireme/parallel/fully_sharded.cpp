#include "trireme/parallel/fully_sharded.h"

#include <algorithm>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/parallel/replicas.h"

namespace trireme::parallel {

namespace {

/// The gradients of the parameters that are trained, as shards.
Scattering scattering_of(const ShardedWeights& weights, const std::vector<std::size_t>& trained,
                         const FullyShardedOptions& options) {
  Scattering result;
  for (const Unit& unit : weights.units().units) result.units.push_back(unit.name);
  for (std::size_t i : trained) {
    result.shards.push_back(weights.shards()[i]);
    result.tensors.push_back(weights.tensors()[i]);
    result.unit_of.push_back(weights.units().unit_of[i]);
  }
  result.keep_whole = options.sharding == Sharding::Optimizer ||
                      options.gathered == FullyShardedOptions::Gathered::ForAStep;
  return result;
}

}  // namespace

FullySharded::FullySharded(torch::nn::Module& module, const Mesh& mesh, FullyShardedOptions options)
    : AttachedModule(module),
      mesh_(mesh),
      all_(nn::parameters_of(module)),
      keeps_whole_(options.sharding != Sharding::Parameters) {
  core::check(options.ahead >= 0, "FullySharded: {} units cannot be gathered ahead", options.ahead);
  // libtorch runs backward of a device on one thread of the process: ranks that are threads and
  // gather there would wait for each other for ever.
  core::check(
      mesh.device().is_cpu() || mesh.world().backend() != "local" || mesh.size(Axis::Shard) == 1,
      "FullySharded: ranks that are threads of one process cannot share a model on a GPU; "
      "use processes (comm.backend \"shm\"), or the CPU");
  check_cut_on(module, mesh);
  check_same_module(module, mesh.world());
  broadcast_parameters(module, mesh);
  weights_ = std::make_unique<ShardedWeights>(
      all_, find_units(module, all_), mesh,
      ShardedWeights::Options{
          .keep_whole = keeps_whole_,
          .hold_all = options.gathered == FullyShardedOptions::Gathered::ForAStep,
          .ahead = options.ahead});
  std::vector<nn::Parameter> trained;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (!all_[i].tensor.requires_grad()) continue;
    trained_.push_back(i);
    trained.push_back(all_[i]);
  }
  gradients_ = std::make_unique<Gradients>(std::move(trained), mesh,
                                           scattering_of(*weights_, trained_, options));
}

FullySharded::~FullySharded() = default;

void FullySharded::begin_backward() {
  // It comes to the units in the order opposite to forward's.
  if (!ordered_) gradients_->set_unit_order(weights_->backward_order());
  ordered_ = true;
  weights_->complete_held();
}

void FullySharded::backward(const nn::Loss& loss, Micro micro) {
  begin_backward();
  gradients_->backward(loss, micro);
  weights_->end_pass();
}

void FullySharded::discard() {
  gradients_->discard();
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

Totals FullySharded::finish(std::span<const double> values, Divide divide) {
  start_finish();
  finishing_ = false;
  weights_->end_check();
  const Totals totals = gradients_->finish(values, divide);
  broadcast_buffers(module_, mesh_.world());
  return totals;
}

void FullySharded::check_same() const {
  check_same_values(shared(), buffers(), mesh_.world());
}

std::vector<Kept> FullySharded::shared() const {
  if (keeps_whole_) {  // every rank has all of it, not only its shards
    weights_->settle();
    std::vector<Kept> whole;
    for (const nn::Parameter& one : all_) whole.push_back(keep_whole(one, whole.size(), mesh_));
    return whole;
  }
  std::vector<Kept> all = gradients_->kept();
  for (Kept& one : frozen()) all.push_back(std::move(one));
  return all;
}

std::vector<Kept> FullySharded::frozen() const {
  std::vector<Kept> result;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (is_trained(i)) continue;
    const auto& boxes = weights_->shards()[i].boxes;
    for (std::size_t b = 0; b < boxes.size(); ++b)
      if (boxes[b].piece.count > 0)
        result.push_back({.name = all_[i].name,
                          .parameter = i,
                          .tensor = weights_->tensors()[i][b],
                          .held = {boxes[b].held},
                          .pieces = {boxes[b].piece},
                          .sharded = true});
  }
  return result;
}

bool FullySharded::is_trained(std::size_t parameter) const {
  return std::find(trained_.begin(), trained_.end(), parameter) != trained_.end();
}

std::vector<Attached::Value> FullySharded::frozen_values() {
  std::vector<Value> all;
  for (std::size_t i = 0; i < all_.size(); ++i)
    if (!is_trained(i)) all.push_back({all_[i], weights_->assemble(i, weights_->tensors()[i])});
  return all;
}

at::Tensor FullySharded::value(std::size_t parameter) {
  const std::size_t i = trained_[parameter];
  return weights_->assemble(i, weights_->tensors()[i]);
}

at::Tensor FullySharded::gradient(std::size_t parameter) {
  const std::size_t i = trained_[parameter];
  // A rank without a piece cannot tell whether there is a gradient; the first has one of each.
  std::vector<at::Tensor> parts;
  bool there = false;
  for (const at::Tensor& tensor : weights_->tensors()[i]) {
    there = there || tensor.grad().defined();
    parts.push_back(tensor.grad().defined() ? tensor.grad() : at::zeros_like(tensor));
  }
  at::Tensor known = at::tensor({there ? 1 : 0}, at::kLong);
  mesh_.group(Axis::Shard).all_reduce(known, comm::ReduceOp::Max).wait();
  return known.item<int64_t>() == 0 ? at::Tensor() : weights_->assemble(i, parts);
}

}  // namespace trireme::parallel
