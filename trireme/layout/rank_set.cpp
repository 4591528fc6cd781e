#include "trireme/layout/rank_set.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace trireme {

std::vector<Axis> sorted(std::vector<Axis> axes) {
  std::ranges::sort(axes);
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  return axes;
}

bool counts_ranks_twice(const std::vector<Axis>& axes) {
  const auto has = [&](Axis axis) { return std::ranges::find(axes, axis) != axes.end(); };
  return has(Axis::Expert) && std::ranges::any_of(kDataAxes, has);
}

std::vector<std::vector<Axis>> axis_sets(const Degrees& degrees) {
  std::vector<Axis> cut;
  for (const Axis axis :
       {Axis::Tensor, Axis::Expert, Axis::Context, Axis::Shard, Axis::Replica, Axis::Pipe})
    if (degrees.of(axis) > 1) cut.push_back(axis);
  // The bits of a counter say which axes are in a set.
  std::vector<std::vector<Axis>> sets;
  for (unsigned bits = 1; bits < 1u << cut.size(); ++bits) {
    std::vector<Axis> axes;
    for (std::size_t i = 0; i < cut.size(); ++i)
      if ((bits >> i & 1) != 0) axes.push_back(cut[i]);
    axes = sorted(std::move(axes));
    if (!counts_ranks_twice(axes)) sets.push_back(std::move(axes));
  }
  std::ranges::stable_sort(sets, {}, [](const auto& axes) { return axes.size(); });
  return sets;
}

bool contains(const RankSet& set, const Coord& mine, const Coord& other, const Degrees& degrees) {
  const auto varies = [&](Axis axis) {
    return std::ranges::find(set.axes, axis) != set.axes.end();
  };
  if (varies(Axis::Expert)) {
    // The expert axis re-uses ranks of the data axes: only the rest of the data place must agree.
    if (rest_of(mine, degrees) != rest_of(other, degrees)) return false;
  } else {
    for (const Axis axis : kDataAxes)
      if (!varies(axis) && mine.of(axis) != other.of(axis)) return false;
  }
  if (set.same_experts && mine.expert != other.expert) return false;
  if (!varies(Axis::Tensor) && mine.tensor / set.copies != other.tensor / set.copies) return false;
  if (varies(Axis::Pipe) || mine.pipe == other.pipe) return true;
  return std::ranges::find(set.holders, other.pipe) != set.holders.end();
}

std::vector<int> ranks_of(const RankSet& set, const Coord& coord, const Degrees& degrees) {
  std::vector<int> ranks;
  for (int rank = 0; rank < degrees.world(); ++rank)
    if (contains(set, coord, coord_of(rank, degrees), degrees)) ranks.push_back(rank);
  return ranks;
}

Position position_in(const RankSet& set, const Coord& coord, const Degrees& degrees) {
  const auto ranks = ranks_of(set, coord, degrees);
  const auto mine = std::ranges::find(ranks, rank_of(coord, degrees));
  return {static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size())};
}

std::string to_string(const RankSet& set) {
  std::vector<std::string> parts;
  for (const Axis axis : set.axes) parts.emplace_back(to_string(axis));
  if (set.same_experts) parts.emplace_back("same experts");
  if (set.copies > 1) parts.push_back(fmt::format("{} copies", set.copies));
  if (set.holders.size() > 1) parts.push_back(fmt::format("pipe {}", fmt::join(set.holders, ", ")));
  return parts.empty() ? "one" : fmt::format("{}", fmt::join(parts, "+"));
}

}  // namespace trireme
