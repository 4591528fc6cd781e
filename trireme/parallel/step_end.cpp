#include "trireme/parallel/step_end.h"

#include <fmt/ranges.h>

#include <ATen/ops/_foreach_norm.h>
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

namespace trireme::parallel {

void check(const nn::Loss& loss) {
  TORCH_CHECK(loss.sum.defined() && loss.sum.numel() == 1,
              "backward: the loss must be one number, a sum; it has ",
              loss.sum.defined() ? loss.sum.sizes() : at::IntArrayRef());
  TORCH_CHECK(loss.weight.defined() && loss.weight.numel() == 1,
              "backward: the loss's weight must be one number: how many tokens or samples counted");
}

namespace {

/// The norm of each tensor. On a GPU by few kernels, and the host waits for them once.
std::vector<double> norms_of(const std::vector<at::Tensor>& tensors) {
  std::vector<double> norms;
  if (tensors.empty()) return norms;
  if (tensors.front().is_cpu()) {
    for (const at::Tensor& one : tensors)
      norms.push_back(at::linalg_vector_norm(one).item<double>());
    return norms;
  }
  const at::Tensor all = at::stack(at::_foreach_norm(tensors, 2)).to(at::kCPU, at::kDouble);
  return {all.data_ptr<double>(), all.data_ptr<double>() + all.numel()};
}

}  // namespace

at::Tensor seed_of(const nn::Loss& loss, const at::Tensor& scale) {
  const at::Tensor sum = loss.sum.detach();
  if (!scale.defined()) return at::ones_like(sum);
  return scale.to(sum.options()).expand(sum.sizes()).contiguous();
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

/// Points each shard's .grad at its sum; undefined where there is none yet.
void StepEnd::assign() {
  for (std::size_t k = 0; k < shards_.size(); ++k) {
    const auto& [gradients, index, name] = sources_[k];
    const bool summed_later =
        std::any_of(shards_[k].reductions.begin(), shards_[k].reductions.end(),
                    [](const Reduction& one) { return !one.later.empty(); });
    shards_[k].gradient() =
        gradients->has_home(index) || summed_later ? gradients->home(index) : at::Tensor();
  }
}

/// The sum of the squares of all gradient elements that this rank counts; nan if an element that it
/// has computed for itself, and another rank counts, is not finite.
double StepEnd::squares() const {
  std::vector<at::Tensor> parts;
  std::vector<bool> counts;
  for (const ParameterShard& shard : shards_) {
    const at::Tensor& gradient = shard.gradient();
    if (!gradient.defined()) continue;
    for (std::size_t i = 0; i < shard.reductions.size(); ++i) {
      const Reduction& one = shard.reductions[i];
      if (!one.counts && !one.repeats) continue;
      parts.push_back(shard.part(gradient, i));
      counts.push_back(one.counts);
    }
  }
  const std::vector<double> norms = norms_of(parts);
  double sum = 0;
  for (std::size_t i = 0; i < norms.size(); ++i) {
    const double norm = norms[i];
    if (counts[i])
      sum += norm * norm;
    else if (!std::isfinite(norm))
      sum = std::numeric_limits<double>::quiet_NaN();
  }
  return sum;
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
    if (!gradient.defined()) gradient = sources_[k].gradients->home(sources_[k].shard);
    gradient.add_(extra[k]);
  }
}

Totals StepEnd::finish(const LossTotals& own, const Finish& what) {
  const at::NoGradGuard guard;
  for (Gradients* part : parts_) part->start_rest();
  for (Gradients* part : parts_) part->wait();
  assign();
  sum_later([&](std::size_t k) { return shards_[k].gradient(); });
  if (what.on_sums) what.on_sums();

  // One small reduction carries everything else: weight | loss | squares | values | used | late
  constexpr int64_t kTotals = 3;
  const std::size_t values_at = kTotals, used_at = values_at + what.values.size(),
                    late_at = used_at + names_.size(), length = late_at + names_.size();
  if (!small_.defined() || small_.numel() != static_cast<int64_t>(length))
    small_ = at::zeros({static_cast<int64_t>(length)}, at::kDouble);
  auto* sums = small_.data_ptr<double>();
  std::fill(sums, sums + length, 0);
  sums[0] = own.weight;
  sums[1] = own.sum;
  sums[2] = what.norm ? squares() : 0;
  std::copy(what.values.begin(), what.values.end(), sums + values_at);
  for (const auto& [gradients, parameter, name] : parameters_) {
    sums[used_at + name] = gradients->used(parameter) ? 1 : 0;
    sums[late_at + name] = gradients->is_late(parameter) ? 1 : 0;
  }
  mesh_.world().all_reduce(small_).wait();

  if (std::any_of(sums + late_at, sums + length, [](double count) { return count > 0; })) {
    add_late(sums + late_at);
    at::Tensor again = at::zeros({1}, at::kDouble);
    if (what.norm) again.data_ptr<double>()[0] = squares();
    mesh_.world().all_reduce(again).wait();
    sums[2] = again.data_ptr<double>()[0];
  }

  const Totals totals{
      .loss = sums[1],
      .weight = sums[0],
      .norm = std::sqrt(sums[2]) / (what.divide == Divide::Now ? sums[0] : 1),
      .sums = {sums + values_at, sums + used_at},
      .on_device =
          small_.narrow(0, 0, kTotals).to(mesh_.device(), at::kDouble, false, /*copy=*/true)};
  for (std::size_t k = 0; k < shards_.size(); ++k) {
    at::Tensor& gradient = shards_[k].gradient();
    if (sums[used_at + sources_[k].name] == 0 || totals.weight == 0)
      gradient = at::Tensor();
    else if (!gradient.defined())
      gradient = sources_[k].gradients->home(sources_[k].shard);
    if (gradient.defined() && what.divide == Divide::Now) gradient.div_(totals.weight);
  }
  totals.weight != 0 ? report_unused(sums + used_at) : report_weightless();
  for (Gradients* part : parts_) part->end_step();
  return totals;
}

void StepEnd::report_weightless() {
  if (std::exchange(told_weightless_, true) || mesh_.world().rank() != 0) return;
  core::Log(0, mesh_.world().name())
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
