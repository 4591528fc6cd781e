#include "trireme/parallel/gradients.h"

#include <fmt/ranges.h>

#include <torch/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/parallel/replicas.h"
#include "trireme/parallel/scattered_buckets.h"

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
  reduced_.resize(parameters_.size());
  for (auto& [axes, members] : by_axes()) {
    std::vector<Axis> all = {Axis::Replica, Axis::Shard, Axis::Context};
    all.insert(all.end(), axes.begin(), axes.end());
    std::vector<at::Tensor> tensors;
    for (std::size_t i : members) {
      reduced_[i] = {sets_.size(), tensors.size()};
      tensors.push_back(parameters_[i].tensor);
    }
    sets_.push_back(std::make_unique<ReducedBuckets>(mesh.group(all), std::move(tensors), sizes));
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    kept_.push_back(keep_whole(parameters_[i], i, mesh));
    home_of_.push_back(0);
  }
  find_copies(mesh);
  attach_hooks();
}

Gradients::Gradients(std::vector<nn::Parameter> parameters, const Mesh& mesh, Scattering scattering)
    : parameters_(std::move(parameters)),
      world_(mesh.world()),
      counts_(mesh.coord(Axis::Tensor) == 0) {
  reduced_.resize(parameters_.size());
  for (auto& [axes, members] : by_axes()) {
    std::vector<Axis> rest = {Axis::Replica, Axis::Context}, all = {Axis::Shard};
    rest.insert(rest.end(), axes.begin(), axes.end());
    all.insert(all.end(), rest.begin(), rest.end());
    std::vector<ScatterMember> scattered;
    for (std::size_t i : members) {
      reduced_[i] = {sets_.size(), scattered.size()};
      scattered.push_back({parameters_[i].tensor, scattering.shards[i], scattering.unit_of[i]});
    }
    const auto shards = mesh.group(Axis::Shard).split("scatter", 0, mesh.coord(Axis::Shard));
    sets_.push_back(std::make_unique<ScatteredBuckets>(
        ScatterGroups{shards, mesh.group(rest), mesh.group(all)}, std::move(scattered),
        scattering.units, scattering.keep_whole));
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& boxes = scattering.shards[i].boxes;
    for (std::size_t b = 0; b < boxes.size(); ++b) {
      if (boxes[b].piece.count == 0) continue;
      kept_.push_back({.name = parameters_[i].name,
                       .parameter = i,
                       .tensor = scattering.tensors[i][b],
                       .held = {boxes[b].held},
                       .pieces = {boxes[b].piece},
                       .sharded = true});
      home_of_.push_back(b);
    }
  }
  find_copies(mesh);
  attach_hooks();
}

/// The parameters by the axes over which their layouts leave gradients partial.
Gradients::Sets Gradients::by_axes() const {
  Sets sets;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    sets[parameters_[i].layout.partial()].push_back(i);
  return sets;
}

void Gradients::set_unit_order(const std::vector<std::size_t>& units) {
  for (const auto& set : sets_)
    if (auto* scattered = dynamic_cast<ScatteredBuckets*>(set.get()))
      scattered->set_unit_order(units);
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
    for (std::size_t k = 0; k < kept_.size(); ++k)
      for (std::size_t i = 0; i < kept_[k].held.size(); ++i)
        if (kept_[k].held[i].copies == copies) parts.push_back({k, i});
    copied_.emplace(copies, std::pair(tensor.split("copies", tensor.rank() / copies, tensor.rank()),
                                      std::move(parts)));
  }
}

void Gradients::sum_copies(const double* used) {
  for (auto& [copies, shared] : copied_) {
    std::vector<at::Tensor> parts, flat;
    for (const auto& [k, piece] : shared.second) {
      const Kept& kept = kept_[k];
      if (used[kept.parameter] == 0) continue;
      const auto [set, place] = reduced_[kept.parameter];
      parts.push_back(kept.part(sets_[set]->homes(place)[home_of_[k]], piece));
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

void Gradients::begin_step() {
  for (const auto& set : sets_) set->begin_step();
  for (nn::Parameter& one : parameters_) one.tensor.mutable_grad() = at::Tensor();
  for (Kept& one : kept_) one.tensor.mutable_grad() = at::Tensor();
}

void check(const nn::Loss& loss) {
  TORCH_CHECK(loss.sum.defined() && loss.sum.numel() == 1,
              "backward: the loss must be one number, a sum; it has ",
              loss.sum.defined() ? loss.sum.sizes() : at::IntArrayRef());
  TORCH_CHECK(loss.weight.defined() && loss.weight.numel() == 1,
              "backward: the loss's weight must be one number: how many tokens or samples counted");
}

void Gradients::backward(const nn::Loss& loss, Micro micro) {
  check(loss);
  weight_ += loss.weight.item<double>();
  collect(micro, [&] {
    // A rank without rows may have a loss that depends on nothing.
    if (loss.sum.requires_grad()) loss.sum.backward();
  });
}

void Gradients::collect(Micro micro, const std::function<void()>& body) {
  check_not_broken();
  if (!in_step_) begin_step();
  in_step_ = true;
  accumulates_ = micro == Micro::More;
  broken_ = true;  // until it has come to its end
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
  const auto [set, place] = reduced_[parameter];
  sets_[set]->add(place, gradient);
  gradient = at::Tensor();
  if (!accumulates_ || sets_[set]->each_micro()) sets_[set]->arrive(place);
}

void Gradients::check_not_broken() const {
  TORCH_CHECK(!broken_, "gradients: a backward of this step threw, so that they are incomplete; ",
              "attach anew and load the last checkpoint");
}

void Gradients::discard() {
  if (broken_ || !in_step_) return;
  TORCH_CHECK(accumulates_,
              "gradients: the last backward of the step is through, and others may "
              "count on it; call finish()");
  for (const auto& set : sets_) set->discard();
  weight_ = 0;
  in_step_ = accumulates_ = false;
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

Totals Gradients::finish(std::span<const double> values, Divide divide) {
  const at::NoGradGuard guard;
  start_rest();

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
  std::vector<at::Tensor> late;  // a graph that was not like the first step's
  for (const auto& [set, place] : reduced_) late.push_back(sets_[set]->late(place));
  for (const auto& set : sets_) set->wait();
  for (std::size_t i = 0; i < count; ++i) {
    const auto [set, place] = reduced_[i];
    if (totals[late_at + i] > 0) sets_[set]->add_late(place, late[i]);
  }
  sum_copies(totals + used_at);
  for (const auto& set : sets_) set->agree_on_order();

  Totals result{known_weight_.value_or(totals[0]), {totals + 1, totals + used_at}};
  const bool others_tell = known_weight_.has_value();
  known_weight_.reset();
  for (std::size_t k = 0; k < kept_.size(); ++k) {
    const auto [set, place] = reduced_[kept_[k].parameter];
    const bool there = totals[used_at + kept_[k].parameter] > 0 && result.weight != 0;
    at::Tensor& gradient = kept_[k].tensor.mutable_grad();
    gradient = there ? sets_[set]->homes(place)[home_of_[k]] : at::Tensor();
    if (there && divide == Divide::Now) gradient.div_(result.weight);
  }
  if (result.weight != 0)
    report_unused(totals + used_at);
  else if (!others_tell)
    report_weightless(world_, told_weightless_);
  weight_ = 0;
  in_step_ = accumulates_ = false;
  return result;
}

void report_weightless(const comm::Communicator& world, bool& told) {
  if (std::exchange(told, true) || world.rank() != 0) return;
  core::Log(0, world.name())
      .warning(
          "the total weight of a step is 0: nothing counted, so nothing is updated (this is said "
          "once)");
}

void Gradients::report_unused(const double* used) {
  if (told_unused_) return;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (used[i] == 0) names.push_back(parameters_[i].name);
  }
  if (names.empty()) return;
  told_unused_ = true;
  if (world_.rank() == 0)
    core::Log(0, world_.name())
        .warning(fmt::format("no rank used {}: {} no gradient and will not be updated",
                             fmt::join(names, ", "), names.size() == 1 ? "it has" : "they have"));
}

std::vector<std::string> Gradients::order() const {
  std::vector<std::string> names;
  for (std::size_t s = 0; s < sets_.size(); ++s) {
    if (!sets_[s]->settled()) return {};
    std::vector<std::string> of_place(sets_[s]->size());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (reduced_[i].set == s) of_place[reduced_[i].place] = parameters_[i].name;
    }
    for (int64_t place : sets_[s]->order())
      names.push_back(of_place[static_cast<std::size_t>(place)]);
  }
  return names;
}

Fires Gradients::fires() const {
  Fires all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const int fires = sets_[reduced_[i].set]->expected(reduced_[i].place);
    if (fires > 1) all[parameters_[i].name] = fires;
  }
  return all;
}

void Gradients::set_order(const std::vector<std::string>& names, const Fires& fires) {
  std::map<std::string, Reduced> by_name;
  for (std::size_t i = 0; i < parameters_.size(); ++i) by_name[parameters_[i].name] = reduced_[i];
  std::vector<std::vector<int64_t>> orders(sets_.size());
  for (const std::string& name : names) {
    const auto found = by_name.find(name);
    if (found != by_name.end())
      orders[found->second.set].push_back(static_cast<int64_t>(found->second.place));
  }
  for (std::size_t s = 0; s < sets_.size(); ++s) sets_[s]->reorder(orders[s]);
  for (const auto& [name, count] : fires)
    if (const auto found = by_name.find(name); found != by_name.end())
      sets_[found->second.set]->expect(found->second.place, count);
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
