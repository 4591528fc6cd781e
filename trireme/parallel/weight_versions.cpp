#include "trireme/parallel/weight_versions.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "trireme/nn/bind.h"

namespace trireme::parallel {

WeightVersions::WeightVersions(std::vector<ParameterShard>& shards, int count)
    : ring_(static_cast<std::size_t>(count)) {
  const at::NoGradGuard guard;
  for (ParameterShard& one : shards) {
    for (auto& memory : ring_) memory.push_back(one.weight.detach().clone());
    shares_.push_back(one.weight.is_same(one.master));
    if (shares_.back())
      one.master = at::empty_like(one.weight.detach()).requires_grad_(one.weight.requires_grad());
    weights_.push_back(one.weight);
    masters_.push_back(one.master);
  }
  newest_ = count - 1;
  for (std::size_t i = 0; i < masters_.size(); ++i)
    if (shares_[i]) nn::bind(masters_[i], slot(newest_)[i]);
  use_newest();
}

const std::vector<at::Tensor>& WeightVersions::slot(int64_t version) const {
  TORCH_INTERNAL_ASSERT(version <= newest_ && version > newest_ - count(),
                        "a verified schedule uses a version of the weights that is not kept");
  return ring_[static_cast<std::size_t>(version % count())];
}

void WeightVersions::use(int64_t version) {
  if (version == bound_) return;
  const auto& memory = slot(version);
  for (std::size_t i = 0; i < weights_.size(); ++i) nn::bind(weights_[i], memory[i]);
  bound_ = version;
}

void WeightVersions::advance() {
  const at::NoGradGuard guard;
  const auto& before = slot(newest_);
  ++newest_;
  const auto& after = slot(newest_);
  for (std::size_t i = 0; i < weights_.size() && count() > 1; ++i) {
    after[i].copy_(before[i]);
    if (shares_[i]) nn::bind(masters_[i], after[i]);
  }
  use_newest();
}

void WeightVersions::round_masters() {
  const at::NoGradGuard guard;
  for (std::size_t i = 0; i < masters_.size(); ++i)
    if (!shares_[i]) slot(newest_)[i].copy_(masters_[i]);
}

void WeightVersions::forget() {
  const at::NoGradGuard guard;
  for (int age = 1; age < count(); ++age)
    for (std::size_t i = 0; i < weights_.size(); ++i)
      slot(newest_ - age)[i].copy_(slot(newest_)[i]);
}

}  // namespace trireme::parallel
