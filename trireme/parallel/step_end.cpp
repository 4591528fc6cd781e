#include "trireme/parallel/step_end.h"

#include <fmt/ranges.h>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "trireme/core/log.h"
#include "trireme/cuda/squares.h"

namespace trireme::parallel {

void check(const nn::Loss& loss) {
  TORCH_CHECK(loss.sum.defined() && loss.sum.numel() == 1,
              "backward: the loss must be one number, a sum; it has ",
              loss.sum.defined() ? loss.sum.sizes() : at::IntArrayRef());
  TORCH_CHECK(loss.weight.defined() && loss.weight.numel() == 1,
              "backward: the loss's weight must be one number: how many tokens or samples counted");
}

at::Tensor seed_of(const nn::Loss& loss, const at::Tensor& scale) {
  const at::Tensor sum = loss.sum.detach();
  if (!scale.defined()) return at::ones_like(sum);
  return scale.to(sum.options()).expand(sum.sizes()).contiguous();
}

at::Tensor numbers_of(const nn::Loss& loss) {
  const at::NoGradGuard guard;
  LossTotals one;
  one.add(loss);
  return at::stack({one.sum, one.weight});
}

StepEnd::StepEnd(const Mesh& mesh, std::shared_ptr<Reducer> reducer, std::vector<Gradients*> parts,
                 std::vector<ParameterShard> shards, std::vector<std::string> names)
    : mesh_(mesh),
      reducer_(std::move(reducer)),
      parts_(std::move(parts)),
      shards_(std::move(shards)),
      names_(std::move(names)) {
  std::map<std::string, std::size_t> index_of;
  for (std::size_t i = 0; i < names_.size(); ++i) index_of[names_[i]] = i;
  std::set<RankSet> copies, holders;
  for (Gradients* part : parts_) {
    for (std::size_t k = 0; k < part->shards().size(); ++k)
      sources_.push_back({part, k, index_of.at(part->shards()[k].name)});
    for (std::size_t i = 0; i < part->parameters().size(); ++i) {
      const nn::Parameter& one = part->parameters()[i];
      parameters_.push_back({part, i, index_of.at(one.name)});
      for (RankSet& set : copy_sets_of(one.layout, mesh.degrees())) copies.insert(std::move(set));
    }
  }
  TORCH_INTERNAL_ASSERT(sources_.size() == shards_.size());
  for (const ParameterShard& shard : shards_)
    for (const Reduction& one : shard.reductions)
      for (const RankSet& set : one.later)
        if (!set.holders.empty()) holders.insert(set);
  for (const auto& sets : {copies, holders})
    for (const RankSet& set : sets) later_.push_back({set, boxes_over(set)});
  for (const RankSet& set : copies) reducer_->group(set);
}

std::vector<std::pair<std::size_t, std::size_t>> StepEnd::boxes_over(const RankSet& set) const {
  std::vector<std::pair<std::size_t, std::size_t>> boxes;
  for (std::size_t k = 0; k < shards_.size(); ++k) {
    const auto& reductions = shards_[k].reductions;
    for (std::size_t i = 0; i < reductions.size(); ++i)
      if (std::ranges::find(reductions[i].later, set) != reductions[i].later.end())
        boxes.emplace_back(k, i);
  }
  std::ranges::sort(boxes, {}, [&](const auto& box) {
    const Piece& piece = shards_[box.first].pieces[box.second];
    return std::tuple(piece.name, piece.offset, piece.begin);
  });
  return boxes;
}

/// Sums gradients that several ranks hold: of copies of a box along a cut, then of tied weights.
void StepEnd::sum_later(const std::function<at::Tensor(std::size_t shard)>& gradient_of) {
  for (const auto& [set, boxes] : later_) {
    std::map<core::DType, std::vector<at::Tensor>> parts;  // by the dtype in which they travel
    for (const auto& [k, i] : boxes)
      if (const at::Tensor all = gradient_of(k); all.defined())
        parts[shards_[k].reductions[i].dtypes.reduce].push_back(shards_[k].part(all, i));
    for (const auto& [wire, some] : parts) {
      PackedSum sum(*reducer_, set, wire);
      sum.start(some);
      sum.wait();
    }
  }
}

/// A shard's gradient in the dtype in which gradients are added up.
at::Tensor StepEnd::widened(std::size_t k) {
  sources_[k].gradients->widen(sources_[k].shard);
  return sources_[k].gradients->home(sources_[k].shard);
}

/// Points each shard's .grad at its sum; undefined where there is none yet.
void StepEnd::assign() {
  for (std::size_t k = 0; k < shards_.size(); ++k) {
    const auto& [gradients, index, name] = sources_[k];
    const bool summed_later =
        std::any_of(shards_[k].reductions.begin(), shards_[k].reductions.end(),
                    [](const Reduction& one) { return !one.later.empty(); });
    if (summed_later) gradients->widen(index);
    shards_[k].gradient() =
        gradients->has_home(index) || summed_later ? gradients->home(index) : at::Tensor();
  }
}

/// All gradient elements that this rank counts in the norm, and those that it has computed for
/// itself although another rank counts them: if these are not finite, the norm must not be, either.
std::vector<StepEnd::GradientPart> StepEnd::counted_parts() const {
  std::vector<GradientPart> parts;
  for (const ParameterShard& shard : shards_) {
    const at::Tensor& gradient = shard.gradient();
    if (!gradient.defined()) continue;
    for (std::size_t i = 0; i < shard.reductions.size(); ++i) {
      const Reduction& one = shard.reductions[i];
      if (one.counts || one.repeats) parts.push_back({shard.part(gradient, i), one.counts});
    }
  }
  return parts;
}

double StepEnd::squares() const {
  if (!mesh_.device().is_cpu()) return squares_on_device().item<double>();
  double sum = 0;
  for (const auto& [tensor, counts] : counted_parts()) {
    const auto norm = at::linalg_vector_norm(tensor).item<double>();
    if (counts)
      sum += norm * norm;
    else if (!std::isfinite(norm))
      sum = std::numeric_limits<double>::quiet_NaN();
  }
  return sum;
}

at::Tensor StepEnd::squares_on_device() const {
  std::vector<cuda::Squared> tensors;
  at::Tensor others = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(mesh_.device()));
  for (const auto& [tensor, counts] : counted_parts()) {
    if (tensor.scalar_type() != at::kDouble) {
      tensors.push_back({tensor.contiguous(), counts});
      continue;
    }
    const at::Tensor sum = tensor.square().sum();
    others = others + (counts ? sum : sum - sum);
  }
  return tensors.empty() ? others : cuda::sum_of_squares(tensors, mesh_.device()) + others;
}

/// Weight, loss and squares of this rank, as three numbers on the device.
at::Tensor StepEnd::device_totals(const LossTotals& own, bool norm) const {
  const auto options = at::TensorOptions().dtype(at::kDouble).device(mesh_.device());
  const auto number = [&](const at::Tensor& one) {
    return one.defined() ? one.to(options) : at::zeros({}, options);
  };
  return at::stack(
      {number(own.weight), number(own.sum), norm ? squares_on_device() : at::zeros({}, options)});
}

/// Sums the gradients that came after their bucket had started, over the same ranks, and adds them.
void StepEnd::add_late(const double* late) {
  std::map<std::pair<const Gradients*, std::size_t>, std::vector<at::Tensor>> sums;
  for (const auto& [gradients, parameter, name] : parameters_)
    if (late[name] > 0) sums[{gradients, parameter}] = gradients->sum_late(parameter);
  std::vector<at::Tensor> extra(shards_.size());
  for (std::size_t k = 0; k < shards_.size(); ++k) {
    const ParameterShard& shard = sources_[k].gradients->shards()[sources_[k].shard];
    const auto found = sums.find({sources_[k].gradients, shard.parameter});
    if (found != sums.end()) extra[k] = found->second[shard.box];
  }
  sum_later([&](std::size_t k) { return extra[k]; });
  for (std::size_t k = 0; k < shards_.size(); ++k) {
    if (!extra[k].defined()) continue;
    at::Tensor& gradient = shards_[k].gradient();
    if (!gradient.defined() || comm::is_half(gradient.scalar_type())) gradient = widened(k);
    gradient.add_(extra[k]);
  }
}

/// Parameters that no rank used have no gradient; with `all`, none has.
void StepEnd::forget_unused(const double* used, bool all) {
  for (std::size_t k = 0; k < shards_.size(); ++k) {
    at::Tensor& gradient = shards_[k].gradient();
    if (all || used[sources_[k].name] == 0)
      gradient = at::Tensor();
    else if (!gradient.defined())
      gradient = sources_[k].gradients->home(sources_[k].shard);
  }
}

Totals StepEnd::finish(const LossTotals& own, const Finish& what) {
  const at::NoGradGuard guard;
  for (Gradients* part : parts_) part->start_rest();
  for (Gradients* part : parts_) part->wait();
  assign();
  sum_later([&](std::size_t k) { return shards_[k].gradient(); });
  if (what.on_sums) what.on_sums();

  // One small reduction carries everything else: weight | loss | squares | values | used | late. On
  // a GPU the first three are 0 in it, and `totals` has a reduction of its own.
  constexpr int64_t kTotals = 3;
  const bool on_gpu = !mesh_.device().is_cpu();
  const std::size_t values_at = kTotals, used_at = values_at + what.values.size(),
                    late_at = used_at + names_.size(), length = late_at + names_.size();
  if (!small_.defined() || small_.numel() != static_cast<int64_t>(length))
    small_ = at::zeros({static_cast<int64_t>(length)}, at::kDouble);
  auto* sums = small_.data_ptr<double>();
  std::fill(sums, sums + length, 0);
  at::Tensor totals = small_.narrow(0, 0, kTotals);
  comm::Work totals_work;
  if (on_gpu) {
    totals = device_totals(own, what.norm);
    if (mesh_.world().size() > 1) totals_work = mesh_.world().all_reduce(totals);
  } else {
    sums[0] = own.weight.defined() ? own.weight.item<double>() : 0;
    sums[1] = own.sum.defined() ? own.sum.item<double>() : 0;
    sums[2] = what.norm ? squares() : 0;
  }
  std::copy(what.values.begin(), what.values.end(), sums + values_at);
  for (const auto& [gradients, parameter, name] : parameters_) {
    sums[used_at + name] = gradients->used(parameter) ? 1 : 0;
    sums[late_at + name] = gradients->is_late(parameter) ? 1 : 0;
  }
  mesh_.world().all_reduce(small_).wait();
  totals_work.wait();

  if (std::any_of(sums + late_at, sums + length, [](double count) { return count > 0; })) {
    add_late(sums + late_at);
    at::Tensor again = at::zeros({1}, at::kDouble);
    if (what.norm) again.data_ptr<double>()[0] = squares();
    mesh_.world().all_reduce(again).wait();
    totals[2].copy_(again[0]);
  }

  const bool known = !on_gpu || what.read == Read::Now || what.divide == Divide::Now;
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  Totals result{.loss = kUnknown,
                .weight = kUnknown,
                .norm = kUnknown,
                .sums = {sums + values_at, sums + used_at},
                .on_device = on_gpu ? totals : totals.clone()};
  if (known) {
    const at::Tensor read = totals.cpu();
    const auto* three = read.data_ptr<double>();
    result.weight = three[0];
    result.loss = three[1];
    result.norm = std::sqrt(three[2]) / (what.divide == Divide::Now ? three[0] : 1);
  }
  reducer_->end_step(result.weight);
  const bool weightless = known && result.weight == 0;
  forget_unused(sums + used_at, weightless);
  if (what.divide == Divide::Now && !weightless) divide(result.weight);
  if (!weightless)
    report_unused(sums + used_at);
  else if (what.divide == Divide::Now)  // otherwise the caller has the weight, and says it
    weightless_.say(mesh_.world());
  for (Gradients* part : parts_) part->end_step();
  return result;
}

/// Makes means of sums.
void StepEnd::divide(double weight) {
  for (std::size_t k = 0; k < shards_.size(); ++k) {
    at::Tensor& gradient = shards_[k].gradient();
    if (!gradient.defined()) continue;
    if (comm::is_half(gradient.scalar_type())) gradient = widened(k);
    gradient.div_(weight);
  }
}

void WeightlessWarning::say(const comm::Communicator& world) {
  if (std::exchange(said_, true) || world.rank() != 0) return;
  core::Log(0, world.name())
      .warning(
          "the total weight of a step is 0: nothing counted, so nothing is updated (this is said "
          "once)");
}

void StepEnd::report_unused(const double* used) {
  if (told_unused_) return;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (used[i] == 0) names.push_back(names_[i]);
  if (names.empty()) return;
  told_unused_ = true;
  if (mesh_.world().rank() == 0)
    core::Log(0, mesh_.world().name())
        .warning(fmt::format("no rank used {}: {} no gradient and will not be updated",
                             fmt::join(names, ", "), names.size() == 1 ? "it has" : "they have"));
}

}  // namespace trireme::parallel
