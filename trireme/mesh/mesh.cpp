#include "trireme/mesh/mesh.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "trireme/comm/local/local.h"
#include "trireme/core/error.h"

namespace trireme {

namespace {

constexpr std::array kAxes = {Axis::Pipe,    Axis::Replica, Axis::Shard,
                              Axis::Context, Axis::Expert,  Axis::Tensor};

bool has(const std::vector<Axis>& axes, Axis axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

/// Two ranks are in one group along `axes` when this is the same for both: what is left of their
/// coordinates. The expert axis re-uses ranks of replica x shard x context, so with it the place
/// among those that hold the same experts stands for the three.
std::array<int, 5> fixed(const Coord& coord, const Degrees& degrees,
                         const std::vector<Axis>& axes) {
  const auto keep = [&](Axis axis) { return has(axes, axis) ? 0 : coord.of(axis); };
  if (has(axes, Axis::Expert))
    return {keep(Axis::Pipe), rest_of(coord, degrees), 0, 0, keep(Axis::Tensor)};
  return {keep(Axis::Pipe), keep(Axis::Replica), keep(Axis::Shard), keep(Axis::Context),
          keep(Axis::Tensor)};
}

std::vector<std::vector<int>> groups_along(const Degrees& degrees, const std::vector<Axis>& axes) {
  std::map<std::array<int, 5>, std::vector<int>> groups;
  for (int rank = 0; rank < degrees.world(); ++rank)
    groups[fixed(coord_of(rank, degrees), degrees, axes)].push_back(rank);
  std::vector<std::vector<int>> list;
  for (auto& [key, ranks] : groups) list.push_back(std::move(ranks));
  return list;
}

std::string name_of(const std::vector<Axis>& axes) {
  std::vector<std::string_view> names;
  for (Axis axis : axes) names.push_back(to_string(axis));
  return fmt::format("{}", fmt::join(names, "+"));
}

}  // namespace

Mesh::Mesh(comm::Communicator world, Degrees degrees, c10::Device device)
    : world_(std::move(world)), degrees_(degrees), device_(device) {
  check(degrees_, world_.size());
  coord_ = coord_of(world_.rank(), degrees_);
  for (Axis axis : kAxes) groups_.emplace(std::vector{axis}, make_group({axis}));
}

const comm::Communicator& Mesh::group(Axis axis) const {
  return groups_.at({axis});
}

comm::Communicator Mesh::group(const std::vector<Axis>& axes) const {
  const std::set<Axis> unique(axes.begin(), axes.end());
  const std::vector<Axis> sorted(unique.begin(), unique.end());
  core::check(!sorted.empty(), "Mesh: a group of no axes");
  core::check(
      !unique.contains(Axis::Expert) || sorted.size() == 1 ||
          !(unique.contains(Axis::Replica) || unique.contains(Axis::Shard) ||
            unique.contains(Axis::Context)),
      "Mesh: expert is part of replica x shard x context; a group of {} would count it twice",
      name_of(sorted));
  auto found = groups_.find(sorted);
  if (found == groups_.end()) found = groups_.emplace(sorted, make_group(sorted)).first;
  return found->second;
}

comm::Communicator Mesh::make_group(const std::vector<Axis>& axes) const {
  const auto groups = groups_along(degrees_, axes);
  const auto mine = std::find_if(groups.begin(), groups.end(), [&](const std::vector<int>& ranks) {
    return std::find(ranks.begin(), ranks.end(), world_.rank()) != ranks.end();
  });
  return world_.split(name_of(axes), static_cast<int>(mine - groups.begin()), world_.rank());
}

Mesh mesh_of_one(c10::Device device) {
  return {comm::Communicator("alone", comm::make_local(comm::make_local_hub(1), 0)), Degrees{},
          device};
}

std::string Mesh::to_string() const {
  std::string text = fmt::format("mesh of {} rank{}: {}\n", world_.size(),
                                 world_.size() == 1 ? "" : "s", trireme::to_string(degrees_));
  for (Axis axis : kAxes) {
    if (degrees_.of(axis) == 1) continue;
    std::vector<std::string> groups;
    for (const auto& ranks : groups_along(degrees_, {axis}))
      groups.push_back(fmt::format("{{{}}}", fmt::join(ranks, " ")));
    text += fmt::format("  {:<8} {:>3}   {}\n", trireme::to_string(axis), degrees_.of(axis),
                        fmt::join(groups, " "));
  }
  return text;
}

}  // namespace trireme
