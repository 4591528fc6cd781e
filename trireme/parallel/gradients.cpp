#include "trireme/parallel/gradients.h"

#include <fmt/ranges.h>

#include <torch/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <set>

#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/parallel/replicas.h"

namespace trireme::parallel {

namespace {

namespace ag = torch::autograd;

struct ReadyHook final : ag::PostAccumulateGradHook {
  ReadyHook(Gradients& to, std::size_t which) : gradients(to), parameter(which) {}
  void operator()(const at::Tensor&) override { gradients.ready(parameter); }
  Gradients& gradients;
  std::size_t parameter;
};

std::vector<nn::Parameter> trained(const torch::nn::Module& module) {
  std::vector<nn::Parameter> all = nn::parameters_of(module);
  std::erase_if(all, [](const nn::Parameter& one) { return !one.tensor.requires_grad(); });
  return all;
}

}  // namespace

Gradients::Gradients(const torch::nn::Module& module, const Mesh& mesh, BucketSizes sizes)
    : parameters_(trained(module)), world_(mesh.world()), counts_(mesh.coord(Axis::Tensor) == 0) {
  check_cut_on(module, mesh);
  std::map<std::vector<Axis>, std::vector<std::size_t>> by_axes;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const nn::Parameter& one = parameters_[i];
    std::vector<Axis> axes = {Axis::Replica, Axis::Shard, Axis::Context};
    axes.insert(axes.end(), one.layout.partial().begin(), one.layout.partial().end());
    by_axes[axes].push_back(i);
  }
  reduced_.resize(parameters_.size());
  for (const auto& [axes, members] : by_axes) {
    std::vector<at::Tensor> tensors;
    for (std::size_t i : members) {
      reduced_[i] = {sets_.size(), tensors.size()};
      tensors.push_back(parameters_[i].tensor);
    }
    sets_.push_back(std::make_unique<Buckets>(mesh.group(axes), std::move(tensors), sizes));
  }
  find_copies(mesh);
  attach_hooks();
}

/// Fewer kv heads than ranks: those that hold a copy of one each have the gradient of their own
/// query heads only.
void Gradients::find_copies(const Mesh& mesh) {
  std::set<int> shared;  // the same on every rank, since splitting a group is collective
  for (const nn::Parameter& one : parameters_)
    for (int place = 0; place < mesh.size(Axis::Tensor); ++place)
      for (const Held& held :
           one.layout.held({.tensor = place}, {.tensor = mesh.size(Axis::Tensor)}))
        if (held.copies > 1) shared.insert(held.copies);
  const comm::Communicator& tensor = mesh.group(Axis::Tensor);
  for (int copies : shared) {
    std::vector<Copied> parts;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      for (const Held& held : parameters_[i].layout.held(mesh.coord(), mesh.degrees()))
        if (held.copies == copies) parts.push_back({i, held});
    copied_.emplace(copies, std::pair(tensor.split("copies", tensor.rank() / copies, tensor.rank()),
                                      std::move(parts)));
  }
}

void Gradients::sum_copies(const double* used) {
  for (auto& [copies, shared] : copied_) {
    std::vector<at::Tensor> parts, flat;
    for (const Copied& one : shared.second) {
      if (used[one.parameter] == 0) continue;
      const auto [set, place] = reduced_[one.parameter];
      parts.push_back(nn::part_of(sets_[set]->home(place), one.held));
      flat.push_back(parts.back().reshape({-1}));
    }
    if (parts.empty()) continue;
    at::Tensor all = at::cat(flat);
    shared.first.all_reduce(all).wait();
    int64_t begin = 0;
    for (at::Tensor& part : parts) {
      part.copy_(all.narrow(0, begin, part.numel()).view(part.sizes()));
      begin += part.numel();
    }
  }
}

void Gradients::attach_hooks() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& tensor = parameters_[i].tensor;
    TORCH_CHECK(ag::impl::post_acc_grad_hooks(tensor) == nullptr, "gradients: '",
                parameters_[i].name, "' has a hook already; attach to a module once");
    ag::impl::set_post_acc_grad_hooks(tensor, std::make_unique<ReadyHook>(*this, i));
  }
}

Gradients::~Gradients() {
  for (nn::Parameter& one : parameters_) ag::impl::set_post_acc_grad_hooks(one.tensor, nullptr);
}

void Gradients::clear_gradients() {
  for (nn::Parameter& one : parameters_) one.tensor.mutable_grad() = at::Tensor();
}

void Gradients::backward(const nn::Loss& loss, Micro micro) {
  TORCH_CHECK(loss.sum.defined() && loss.sum.numel() == 1,
              "backward: the loss must be one number, a sum; it has ", loss.sum.sizes());
  TORCH_CHECK(loss.weight.defined() && loss.weight.numel() == 1,
              "backward: the loss's weight must be one number: how many tokens or samples counted");
  if (!in_step_) clear_gradients();
  in_step_ = true;
  accumulates_ = micro == Micro::More;
  weight_ += loss.weight.item<double>();
  // A rank without rows may have a loss that depends on nothing.
  if (loss.sum.requires_grad()) loss.sum.backward();
}

void Gradients::ready(std::size_t parameter) {
  at::Tensor& gradient = parameters_[parameter].tensor.mutable_grad();
  if (!gradient.defined()) return;
  TORCH_CHECK(in_step_, "gradients: '", parameters_[parameter].name,
              "' got a gradient outside of backward(loss): call that instead of loss.backward()");
  const auto [set, place] = reduced_[parameter];
  sets_[set]->add(place, gradient);
  gradient = at::Tensor();
  if (!accumulates_) sets_[set]->arrive(place);
}

Totals Gradients::finish(std::span<const double> values, Divide divide) {
  const at::NoGradGuard guard;
  if (!in_step_) clear_gradients();
  for (const auto& set : sets_) set->start_rest();

  // One small reduction carries everything else: weight | values | used? | late?
  const std::size_t count = parameters_.size(), used_at = 1 + values.size(),
                    late_at = used_at + count, length = late_at + count;
  if (!totals_.defined() || totals_.numel() != static_cast<int64_t>(length))
    totals_ = at::zeros({static_cast<int64_t>(length)}, at::kDouble);
  auto* totals = totals_.data_ptr<double>();
  totals[0] = counts_ ? weight_ : 0;
  std::copy(values.begin(), values.end(), totals + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const auto [set, place] = reduced_[i];
    totals[used_at + i] = sets_[set]->used(place) ? 1 : 0;
    totals[late_at + i] = sets_[set]->late(place).defined() ? 1 : 0;
  }
  world_.all_reduce(totals_).wait();
  reduce_late(totals + late_at);
  for (const auto& set : sets_) set->wait();
  sum_copies(totals + used_at);
  agree_on_order();

  Totals result{totals[0], {totals + 1, totals + used_at}};
  for (std::size_t i = 0; i < count; ++i) {
    const auto [set, place] = reduced_[i];
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    gradient =
        totals[used_at + i] > 0 && result.weight != 0 ? sets_[set]->home(place) : at::Tensor();
    if (gradient.defined() && divide == Divide::Now) gradient.div_(result.weight);
  }
  if (result.weight == 0)
    core::Log(world_.rank(), world_.name())
        .warning("the total weight of the step is 0: nothing counted, so nothing is updated");
  else
    report_unused(totals + used_at);
  weight_ = 0;
  in_step_ = accumulates_ = false;
  return result;
}

/// Gradients that came after their bucket had begun, on some rank: a graph that was not like the
/// first step's. They are summed on their own.
void Gradients::reduce_late(const double* late) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (late[i] == 0) continue;
    const auto [set, place] = reduced_[i];
    const at::Tensor mine = sets_[set]->late(place);
    at::Tensor sum = mine.defined() ? mine : at::zeros_like(sets_[set]->home(place));
    sets_[set]->group().all_reduce(sum).wait();
    sets_[set]->home(place).add_(sum);
  }
}

/// After the first step: all ranks take the order that the first of the group has seen.
void Gradients::agree_on_order() {
  for (const auto& set : sets_) {
    if (set->ordered()) continue;
    at::Tensor order = at::tensor(set->order(), at::kLong);
    set->group().broadcast(order, 0).wait();
    set->reorder({order.data_ptr<int64_t>(), order.data_ptr<int64_t>() + order.numel()});
  }
}

void Gradients::report_unused(const double* used) {
  if (warned_) return;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (used[i] == 0) names.push_back(parameters_[i].name);
  }
  if (names.empty()) return;
  warned_ = true;
  if (world_.rank() == 0)
    core::Log(0, world_.name())
        .warning(fmt::format("no rank used {}: {} no gradient and will not be updated",
                             fmt::join(names, ", "), names.size() == 1 ? "it has" : "they have"));
}

std::vector<std::string> Gradients::order() const {
  std::vector<std::string> names;
  for (std::size_t s = 0; s < sets_.size(); ++s) {
    if (!sets_[s]->ordered()) return {};
    std::vector<std::string> of_place(sets_[s]->size());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (reduced_[i].set == s) of_place[reduced_[i].place] = parameters_[i].name;
    }
    for (int64_t place : sets_[s]->order())
      names.push_back(of_place[static_cast<std::size_t>(place)]);
  }
  return names;
}

void Gradients::set_order(const std::vector<std::string>& names) {
  std::map<std::string, Reduced> by_name;
  for (std::size_t i = 0; i < parameters_.size(); ++i) by_name[parameters_[i].name] = reduced_[i];
  std::vector<std::vector<int64_t>> orders(sets_.size());
  for (const std::string& name : names) {
    const auto found = by_name.find(name);
    if (found != by_name.end())
      orders[found->second.set].push_back(static_cast<int64_t>(found->second.place));
  }
  for (std::size_t s = 0; s < sets_.size(); ++s) sets_[s]->reorder(orders[s]);
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
