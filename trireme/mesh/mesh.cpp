#include "trireme/mesh/mesh.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "trireme/comm/local/local.h"
#include "trireme/core/error.h"

namespace trireme {

namespace {

constexpr std::array kAxes = {Axis::Pipe,    Axis::Replica, Axis::Shard,
                              Axis::Context, Axis::Expert,  Axis::Tensor};

bool has(const std::vector<Axis>& axes, Axis axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

/// The groups along `axes`, in the order of their first ranks.
std::vector<std::vector<int>> groups_along(const Degrees& degrees, const std::vector<Axis>& axes) {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < degrees.world(); ++rank) {
    auto ranks = ranks_of({.axes = axes}, coord_of(rank, degrees), degrees);
    if (ranks.front() == rank) groups.push_back(std::move(ranks));
  }
  return groups;
}

/// "replica+shard"; of no axes, "one".
std::string name_of(const std::vector<Axis>& axes) {
  if (axes.empty()) return "one";
  std::vector<std::string_view> names;
  for (Axis axis : axes) names.push_back(to_string(axis));
  return fmt::format("{}", fmt::join(names, "+"));
}

}  // namespace

Mesh::Mesh(comm::Communicator world, Degrees degrees, c10::Device device)
    : world_(std::move(world)), degrees_(degrees), device_(device) {
  check(degrees_, world_.size());
  coord_ = coord_of(world_.rank(), degrees_);
  for (Axis axis : kAxes)
    along_.emplace(axis, make_group({axis}, std::string(trireme::to_string(axis))));
  across_.emplace(std::vector<Axis>{}, make_group({}, name_of({}) + " set"));
  for (const std::vector<Axis>& axes : axis_sets(degrees_))
    across_.emplace(axes, make_group(axes, name_of(axes) + " set"));
}

const comm::Communicator& Mesh::group(Axis axis) const {
  return along_.at(axis);
}

std::vector<Axis> Mesh::above_one(const std::vector<Axis>& axes) const {
  std::vector<Axis> cut;
  for (Axis axis : kAxes) {
    if (has(axes, axis) && degrees_.of(axis) > 1) cut.push_back(axis);
  }
  return cut;
}

const comm::Communicator& Mesh::group(const std::vector<Axis>& axes) const {
  core::check(!axes.empty(), "Mesh: a group of no axes");
  core::check(
      !counts_ranks_twice(axes),
      "Mesh: expert is part of replica x shard x context; a group of {} would count it twice",
      name_of(axes));
  return across_.at(above_one(axes));
}

comm::Communicator Mesh::make_group(const std::vector<Axis>& axes, const std::string& name) const {
  const auto ranks = ranks_of({.axes = axes}, coord_, degrees_);
  if (ranks.size() == 1) return world_.alone(name);  // so it is on every rank
  return world_.split(name, ranks.front(), world_.rank());
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
