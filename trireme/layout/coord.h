#pragma once

#include "trireme/layout/degrees.h"

namespace trireme {

/// The place of a rank along every axis.
///
///   rank = (((pipe * R + replica) * S + shard) * C + context) * T + tensor
///          `-------------------------------------------´
///          the data place, (replica * S + shard) * C + context, is rest * E + expert
struct Coord {
  int pipe = 0, replica = 0, shard = 0, context = 0, tensor = 0, expert = 0;

  int of(Axis axis) const;
  bool operator==(const Coord&) const = default;
};

/// Throws MisuseError where the rank is not in the mesh.
Coord coord_of(int rank, const Degrees& degrees);

/// The inverse of `coord_of`. `expert` follows from the others and is not read.
int rank_of(const Coord& coord, const Degrees& degrees);

/// The place of the rank among those that hold the same experts: 0 ... data() / expert - 1.
int rest_of(const Coord& coord, const Degrees& degrees);

}  // namespace trireme
