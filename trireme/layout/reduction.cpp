#include "trireme/layout/reduction.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>

namespace trireme {

namespace {

std::vector<Axis> without(std::vector<Axis> axes, Axis axis) {
  std::erase(axes, axis);
  return axes;
}

std::vector<Axis> union_of(std::vector<Axis> axes, const std::vector<Axis>& more) {
  axes.insert(axes.end(), more.begin(), more.end());
  return sorted(std::move(axes));
}

/// The axes whose ranks train the same model on different tokens and sum gradients in every step.
std::vector<Axis> data_axes() {
  return {kDataAxes.begin(), kDataAxes.end()};
}

}  // namespace

core::DType ParameterDtypes::gradient() const {
  return is_half(compute) ? core::DType::Float32 : compute;
}

bool matches_name(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

ParameterDtypes Precision::dtypes_of(const std::string& name, core::DType own) const {
  if (!dtypes) return all_of(own);
  const bool kept = std::any_of(keep.begin(), keep.end(), [&](const std::string& pattern) {
    return matches_name(pattern, name);
  });
  if (!kept || !is_half(dtypes->compute)) return *dtypes;
  return {core::DType::Float32, dtypes->reduce, core::DType::Float32};
}

// Gradients are summed over the data axes, and over the axes where each rank computes only a part
// of the gradient. Where state is sharded, this sum is cut in two: over the ranks that end with
// different shards, and over the rest, which end with the same shard.
//
//                     all                              shards    rest
//   not sharded       replica shard context +partial   -         all
//   sharded           replica shard context +partial   shard     replica context +partial
//   expert, sharded   data ranks with the same experts (+partial): they are the shards; rest:
//   partial
GradientSums gradient_sums_of(const Layout& layout, const Degrees& degrees, const Policy& policy) {
  const std::vector<Axis> data = data_axes();
  const bool expert = layout.is_cut(Axis::Expert) && degrees.expert > 1;
  const bool sharded = policy.sharding != Sharding::None && (!expert || degrees.shard > 1);
  GradientSums sums;
  sums.all = {.axes = union_of(data, layout.partial()), .same_experts = expert};
  if (!sharded) {
    sums.rest = sums.all;
    return sums;
  }
  // All data ranks that hold the same experts share the state of these experts.
  sums.shards =
      expert ? RankSet{.axes = data, .same_experts = true} : RankSet{.axes = {Axis::Shard}};
  sums.rest = {.axes = union_of(expert ? std::vector<Axis>{} : without(data, Axis::Shard),
                                layout.partial())};
  return sums;
}

std::vector<Reduction> reductions_of(const Layout& layout, const Holders& holders,
                                     const Degrees& degrees, const Coord& coord,
                                     const Policy& policy, const ParameterDtypes& dtypes) {
  const GradientSums sums = gradient_sums_of(layout, degrees, policy);
  const Holders stages = holders.size() > 1 ? holders : Holders{};
  const Position shard = position_in(sums.shards, coord, degrees);
  const std::vector<Axis> tensor =
      layout.is_cut(Axis::Tensor) ? std::vector<Axis>{} : std::vector<Axis>{Axis::Tensor};
  // The ranks that are summed end with the same elements, except those that end with other shards.
  RankSet weight = {.axes = union_of(data_axes(), tensor),
                    .holders = stages,
                    .same_experts = sums.all.same_experts};
  RankSet same = weight;
  if (shard.count > 1) {
    same.axes = union_of(without(sums.rest.axes, Axis::Tensor), tensor);
    same.same_experts = false;
  }
  if (policy.sharding == Sharding::Parameters) weight = same;
  std::vector<Reduction> result;
  for (const LocalBox& box : layout.local_boxes(coord, degrees)) {
    Reduction one{.box = box,
                  .sums = sums,
                  .later = {},
                  .shard = shard,
                  .kept = Layout::flat_range(box.box.numel(), shard.count, shard.index),
                  .same = same,
                  .same_weight = weight,
                  .dtypes = dtypes};
    one.same.copies = one.same_weight.copies = box.copies;
    if (box.copies > 1) one.later.push_back({.copies = box.copies});
    if (!stages.empty()) one.later.push_back({.holders = stages});
    one.counts = position_in(one.same, coord, degrees).index == 0;
    one.repeats = std::ranges::any_of(one.same.axes, [&](Axis axis) {
      return degrees.of(axis) > 1 && std::ranges::find(sums.all.axes, axis) == sums.all.axes.end();
    });
    result.push_back(std::move(one));
  }
  return result;
}

Piece piece_of(std::string_view name, const Layout& layout, const Reduction& one) {
  const Box& box = one.box.box;
  return {std::string(name), layout.whole(), box.offset, box.shape, one.kept.begin, one.kept.count};
}

std::vector<Piece> pieces_of(std::string_view name, const Layout& layout, const Coord& coord,
                             const Degrees& degrees, const Policy& policy) {
  std::vector<Piece> pieces;
  for (const Reduction& one : reductions_of(layout, {}, degrees, coord, policy))
    if (one.kept.count > 0) pieces.push_back(piece_of(name, layout, one));
  return pieces;
}

std::vector<RankSet> copy_sets_of(const Layout& layout, const Degrees& degrees) {
  std::set<int> copies;
  for (Coord coord; coord.tensor < degrees.tensor; ++coord.tensor)
    for (const LocalBox& box : layout.local_boxes(coord, degrees)) copies.insert(box.copies);
  copies.erase(1);
  std::vector<RankSet> sets;
  for (const int count : copies) sets.push_back({.copies = count});
  return sets;
}

RankSet same_stage() {
  return {.axes = {Axis::Replica, Axis::Shard, Axis::Context, Axis::Tensor}};
}

std::vector<Axis> sample_axes() {
  return {kSampleAxes.begin(), kSampleAxes.end()};
}

Sharding sharding_on(const Degrees& degrees, Sharding asked) {
  return degrees.shard == 1 ? Sharding::None : asked;
}

bool reports_loss(const Coord& coord) {
  return coord.tensor == 0;
}

}  // namespace trireme
