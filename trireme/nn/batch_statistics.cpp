#include "trireme/nn/batch_statistics.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/stack.h>

#include <utility>

#include "trireme/core/error.h"
#include "trireme/nn/batch_norm_math.h"
#include "trireme/nn/recompute.h"

namespace trireme::nn {

at::Tensor BatchStatistics::gather(const at::Tensor& own) const {
  if (!group_) return own;
  at::Tensor all = at::empty({group_->size(), own.size(0)}, own.options());
  group_->all_gather(all, own.view({1, -1})).wait();
  return batch_norm::merged(all);
}

void BatchStatistics::track(const at::Tensor& moments, const Running& running, double momentum) {
  if (is_recomputing() || !running.mean.defined()) return;
  const at::NoGradGuard guard;
  if (begins()) {
    if (running.num_batches.defined()) running.num_batches.add_(1);
    mean_ = running.mean.clone();
    var_ = running.var.clone();
    moments_ = moments;
    momentum_ = momentum;
    running_ = running;
    open_ = true;
  } else {
    moments_ = batch_norm::merged(at::stack({moments_, moments}));
  }
  // In double, and rounded once. A mini-batch without samples changes nothing.
  const batch_norm::Moments so_far(moments_);
  const at::Tensor share = (so_far.count > 0).to(at::kDouble) * momentum_;
  const at::Tensor var = so_far.squares / (so_far.count - 1).clamp_min(1);
  running.mean.copy_(at::lerp(mean_.to(at::kDouble), so_far.mean, share));
  running.var.copy_(at::lerp(var_.to(at::kDouble), var, share));
}

void BatchStatistics::discard_mini_batch() {
  if (!std::exchange(open_, false)) return;
  const at::NoGradGuard guard;
  running_.mean.copy_(mean_);
  running_.var.copy_(var_);
  if (running_.num_batches.defined()) running_.num_batches.sub_(1);
}

namespace {

/// The layers with statistics, of a module that torch can list or that lies on the stack.
std::vector<const HasBatchStatistics*> layers_with_statistics(const torch::nn::Module& root) {
  std::vector<const HasBatchStatistics*> all;
  const auto add = [&](const torch::nn::Module& one) {
    if (const auto* found = dynamic_cast<const HasBatchStatistics*>(&one)) all.push_back(found);
  };
  add(root);
  for (const auto& one : root.modules(/*include_self=*/false)) add(*one);
  return all;
}

}  // namespace

std::vector<BatchStatisticsPtr> batch_statistics_of(const torch::nn::Module& root) {
  std::vector<BatchStatisticsPtr> all;
  for (const HasBatchStatistics* found : layers_with_statistics(root))
    all.push_back(found->statistics());
  return all;
}

void attach_batch_norms(const torch::nn::Module& root, const Mesh& mesh) {
  std::optional<comm::Communicator> group;  // of their own: their order is not that of gradients
  for (const HasBatchStatistics* found : layers_with_statistics(root)) {
    found->settle();
    found->statistics()->defer();
    if (!found->wants_all_ranks() || mesh.samples().size() == 1) continue;
    if (!group) group = mesh.samples().split("batch_norm", 0, mesh.samples().rank());
    found->statistics()->synchronize(group);
  }
}

}  // namespace trireme::nn
