#pragma once

#include <compare>
#include <string>
#include <vector>

#include "trireme/layout/coord.h"

namespace trireme {

/// The pipe ranks that hold a parameter, in ascending order. A tied weight has several.
using Holders = std::vector<int>;

/// A set of ranks around one rank, described by how they may differ from it. All of them describe
/// the set in the same way, so a rank can compute its group without asking the others.
///
///   {.axes = {Replica, Shard}}      the ranks that differ only along replica and shard
///   {.copies = 2}                   in blocks of two neighbours along tensor: 0 1 | 2 3 | ...
///   {.holders = {0, 3}}             the same place in the stages of pipe ranks 0 and 3
///   {.axes = {Replica, Shard, Context}, .same_experts = true}
///                                   of these only the ranks that hold the same experts
struct RankSet {
  std::vector<Axis> axes = {};  ///< in the order of Axis
  int copies = 1;               ///< neighbours along tensor, where `axes` leaves tensor out
  Holders holders = {};         ///< along pipe, where `axes` leaves pipe out; empty: this one only
  bool same_experts = false;

  auto operator<=>(const RankSet&) const = default;
};

/// The axes in the order of Axis, each once.
std::vector<Axis> sorted(std::vector<Axis> axes);

/// Every set of axes along which this mesh has more than one rank, the fewest axes first and, of
/// as many, the fastest varying first. Sets that would count ranks twice are left out: expert
/// re-uses the ranks of the data axes.
std::vector<std::vector<Axis>> axis_sets(const Degrees& degrees);

/// Does a set of axes have expert and one of the axes whose ranks it re-uses?
bool counts_ranks_twice(const std::vector<Axis>& axes);

/// Is `other` in the set around `mine`?
bool contains(const RankSet& set, const Coord& mine, const Coord& other, const Degrees& degrees);

/// The ranks of the set around `coord`, in ascending order; `coord` is one of them.
std::vector<int> ranks_of(const RankSet& set, const Coord& coord, const Degrees& degrees);

/// How many ranks the set has, and which of them `coord` is, counted in the order of ranks.
struct Position {
  int index = 0, count = 1;
  bool operator==(const Position&) const = default;
};
Position position_in(const RankSet& set, const Coord& coord, const Degrees& degrees);

/// "replica+shard", "2 copies", "pipe 0, 3": a name for messages and groups. "one" for no others.
std::string to_string(const RankSet& set);

}  // namespace trireme
