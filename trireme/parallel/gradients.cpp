#include "trireme/parallel/gradients.h"

#include <torch/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <utility>

#include "trireme/core/error.h"

namespace trireme::parallel {

namespace {

namespace ag = torch::autograd;

struct ReadyHook final : ag::PostAccumulateGradHook {
  ReadyHook(Gradients& to, std::size_t which) : gradients(to), parameter(which) {}
  void operator()(const at::Tensor&) override { gradients.ready(parameter); }
  Gradients& gradients;
  std::size_t parameter;
};

}  // namespace

Gradients::Gradients(std::vector<nn::Parameter> parameters, std::vector<ParameterShard> shards,
                     const Mesh& mesh, const Policy& policy, const BucketFactory& make)
    : parameters_(std::move(parameters)),
      shards_(std::move(shards)),
      bucket_index_(parameters_.size()),
      used_(parameters_.size()),
      late_(parameters_.size()) {
  std::map<GradientSums, std::vector<std::size_t>> by_sums;  // in the same order on every rank
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    by_sums[gradient_sums_of(parameters_[i].layout, mesh.degrees(), policy)].push_back(i);
  for (const auto& [sums, members] : by_sums) {
    for (std::size_t n = 0; n < members.size(); ++n) bucket_index_[members[n]] = {sets_.size(), n};
    sets_.push_back(make(sums, members));
  }
  attach_hooks();
}

void Gradients::attach_hooks() {
  // All are checked before the first hook is set: a hook must not outlive this object.
  for (const nn::Parameter& one : parameters_)
    TORCH_CHECK(ag::impl::post_acc_grad_hooks(one.tensor) == nullptr, "gradients: '", one.name,
                "' has a hook already; attach to a module once");
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    ag::impl::set_post_acc_grad_hooks(parameters_[i].tensor, std::make_unique<ReadyHook>(*this, i));
}

Gradients::~Gradients() {
  for (nn::Parameter& one : parameters_) ag::impl::set_post_acc_grad_hooks(one.tensor, nullptr);
}

void Gradients::begin_step() {
  for (const auto& set : sets_) set->begin_step();
  for (nn::Parameter& one : parameters_) one.tensor.mutable_grad() = at::Tensor();
  for (const ParameterShard& one : shards_) one.gradient() = at::Tensor();
}

void Gradients::collect(Micro micro, const std::function<void()>& body) {
  check_not_broken();
  if (!in_step_) begin_step();
  in_step_ = true;
  accumulates_ = micro == Micro::More;
  broken_ = true;  // until `body` has returned
  for (const auto& set : sets_) set->begin_micro(micro == Micro::Last);
  body();
  for (const auto& set : sets_) set->end_micro();
  broken_ = false;
}

std::vector<nn::WeightJob> Gradients::defer(nn::WeightQueue& queue,
                                            const std::function<void()>& body) {
  check_not_broken();
  if (!in_step_) begin_step();
  in_step_ = broken_ = true;
  deferring_ = &queue;
  auto jobs = queue.defer(body);
  deferring_ = nullptr;
  broken_ = false;
  return jobs;
}

void Gradients::ready(std::size_t parameter) {
  at::Tensor& gradient = parameters_[parameter].tensor.mutable_grad();
  if (!gradient.defined()) return;
  if (deferring_ != nullptr) {
    deferring_->push({parameters_[parameter].tensor,
                      [given = std::exchange(gradient, at::Tensor())] { return given; }});
    return;
  }
  TORCH_CHECK(in_step_, "gradients: '", parameters_[parameter].name,
              "' got a gradient outside of backward(loss): call that instead of loss.backward()");
  Buckets& set = set_of(parameter);
  const std::size_t index = bucket_index_[parameter].index;
  set.add(index, gradient);
  gradient = at::Tensor();
  if (!accumulates_ || set.each_micro()) set.arrive(index);
}

void Gradients::check_not_broken() const {
  TORCH_CHECK(!broken_, "gradients: a backward of this step threw, so that they are incomplete; ",
              "attach anew and load the last checkpoint");
}

bool Gradients::discard() {
  if (broken_ || !in_step_) return false;
  TORCH_CHECK(accumulates_,
              "gradients: the last backward of the step is through, and others may "
              "count on it; call finish()");
  for (const auto& set : sets_) set->discard();
  in_step_ = accumulates_ = false;
  return true;
}

void Gradients::start_rest() {
  const at::NoGradGuard guard;
  check_not_broken();
  if (!in_step_) begin_step();
  in_step_ = true;
  for (const auto& set : sets_) {
    set->begin_micro(/*last=*/true);
    set->start_rest();
  }
}

void Gradients::wait() {
  const at::NoGradGuard guard;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    used_[i] = set_of(i).used(bucket_index_[i].index);
    late_[i] = set_of(i).late(bucket_index_[i].index);
  }
  for (const auto& set : sets_) set->wait();
}

at::Tensor Gradients::home(std::size_t k) {
  const ParameterShard& shard = shards_[k];
  return set_of(shard.parameter).homes(bucket_index_[shard.parameter].index)[shard.box];
}

void Gradients::widen(std::size_t k) {
  const ParameterShard& shard = shards_[k];
  set_of(shard.parameter).widen(bucket_index_[shard.parameter].index);
}

bool Gradients::has_home(std::size_t k) const {
  const std::size_t parameter = shards_[k].parameter;
  return used_[parameter] || !set_of(parameter).is_local();
}

std::vector<at::Tensor> Gradients::sum_late(std::size_t parameter) {
  return set_of(parameter).sum_late(bucket_index_[parameter].index,
                                    std::exchange(late_[parameter], at::Tensor()));
}

void Gradients::end_step() {
  for (const auto& set : sets_) set->agree_on_order();
  in_step_ = accumulates_ = false;
}

std::vector<std::string> Gradients::order() const {
  std::vector<std::string> names;
  for (std::size_t s = 0; s < sets_.size(); ++s) {
    if (!sets_[s]->order_known()) return {};
    std::vector<std::string> name_at(sets_[s]->size());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (bucket_index_[i].set == s) name_at[bucket_index_[i].index] = parameters_[i].name;
    }
    for (int64_t index : sets_[s]->order())
      names.push_back(name_at[static_cast<std::size_t>(index)]);
  }
  return names;
}

Fires Gradients::fires() const {
  Fires all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const int fires = set_of(i).expected(bucket_index_[i].index);
    if (fires > 1) all[parameters_[i].name] = fires;
  }
  return all;
}

void Gradients::set_order(const std::vector<std::string>& names, const Fires& fires) {
  std::map<std::string, BucketIndex> by_name;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    by_name[parameters_[i].name] = bucket_index_[i];
  std::vector<std::vector<int64_t>> orders(sets_.size());
  for (const std::string& name : names) {
    const auto found = by_name.find(name);
    if (found != by_name.end())
      orders[found->second.set].push_back(static_cast<int64_t>(found->second.index));
  }
  for (std::size_t s = 0; s < sets_.size(); ++s) sets_[s]->reorder(orders[s]);
  for (const auto& [name, count] : fires)
    if (const auto found = by_name.find(name); found != by_name.end())
      sets_[found->second.set]->expect(found->second.index, count);
}

std::size_t Gradients::num_begun() const {
  std::size_t count = 0;
  for (const auto& set : sets_) count += set->num_begun();
  return count;
}

int64_t Gradients::memory_bytes() const {
  int64_t bytes = 0;
  for (const auto& set : sets_) bytes += set->memory_bytes();
  return bytes;
}

}  // namespace trireme::parallel
