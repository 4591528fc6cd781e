#include "trireme/parallel/gradient_place.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace trireme::parallel {

namespace {

/// What the reduction of a box says about this rank among those that sum it.
void set_roles(GradientPlace& place, const Reduction& one, const Mesh& mesh) {
  const auto is_first = [&](const RankSet& set) {
    return position_in(set, mesh.coord(), mesh.degrees()).index == 0;
  };
  place.first = is_first(one.sums.all) && std::ranges::all_of(one.later, is_first);
  place.repeats = one.repeats;
}

}  // namespace

std::string to_text(const Piece& piece) {
  return fmt::format("{}:{}:{}", fmt::join(piece.offset, ","), fmt::join(piece.shape, ","),
                     piece.begin);
}

std::string GradientPlace::key() const {
  if (pieces.empty()) return name;  // a parameter without elements
  return fmt::format("{}@{}{}", name, to_text(pieces.front()), shard ? "+" : "");
}

int64_t GradientPlace::numel() const {
  return Box{{}, shape}.numel();
}

at::Tensor GradientPlace::part(const at::Tensor& tensor, std::size_t i) const {
  if (boxes.empty()) return tensor.view({-1});
  return nn::part_of(tensor.view(shape), boxes[i]);
}

GradientPlacePtr place_of(const ParameterShard& whole, const Mesh& mesh) {
  GradientPlace place{
      .name = whole.name, .shape = whole.weight.sizes().vec(), .pieces = whole.pieces};
  for (const Reduction& one : whole.reductions) place.boxes.push_back(one.box);
  if (!whole.reductions.empty()) {  // it has elements
    place.dtype = whole.reductions.front().dtypes.gradient();
    set_roles(place, whole.reductions.front(), mesh);
  }
  return std::make_shared<const GradientPlace>(std::move(place));
}

GradientPlacePtr place_of(const ShardedParameter& parameter, const ShardedBox& box,
                          const Mesh& mesh) {
  Piece all = box.piece;
  all.begin = 0;
  all.count = box.numel();
  GradientPlace place{.name = all.name,
                      .shape = box.local().box.shape,
                      .pieces = {all},
                      .dtype = parameter.dtypes.gradient()};
  set_roles(place, box.reduction, mesh);
  return std::make_shared<const GradientPlace>(std::move(place));
}

GradientPlacePtr shard_place_of(const ShardedParameter& parameter, const ShardedBox& box) {
  GradientPlace place{.name = box.piece.name,
                      .shape = {box.piece.count},
                      .pieces = {box.piece},
                      .dtype = parameter.dtypes.gradient(),
                      .first = false,
                      .repeats = box.reduction.repeats,
                      .shard = true};
  return std::make_shared<const GradientPlace>(std::move(place));
}

}  // namespace trireme::parallel
