#include "trireme/layout/coord.h"

#include "trireme/core/error.h"
#include "trireme/layout/axis_field.h"

namespace trireme {

namespace {

int data_place(const Coord& coord, const Degrees& degrees) {
  return (coord.replica * degrees.shard + coord.shard) * degrees.context + coord.context;
}

}  // namespace

int Coord::of(Axis axis) const {
  return field_of(*this, axis);
}

Coord coord_of(int rank, const Degrees& degrees) {
  core::check(rank >= 0 && rank < degrees.world(), "Mesh: there is no rank {} among {}", rank,
              degrees.world());
  const auto take = [&rank](int degree) {
    const int place = rank % degree;
    rank /= degree;
    return place;
  };
  Coord coord;
  coord.tensor = take(degrees.tensor);
  coord.context = take(degrees.context);
  coord.shard = take(degrees.shard);
  coord.replica = take(degrees.replica);
  coord.pipe = rank;
  coord.expert = data_place(coord, degrees) % degrees.expert;
  return coord;
}

int rank_of(const Coord& coord, const Degrees& degrees) {
  for (const Axis axis : {Axis::Pipe, Axis::Replica, Axis::Shard, Axis::Context, Axis::Tensor}) {
    core::check(coord.of(axis) >= 0 && coord.of(axis) < degrees.of(axis),
                "Mesh: there is no place {} along {} {}", coord.of(axis), to_string(axis),
                degrees.of(axis));
  }
  return (coord.pipe * degrees.data() + data_place(coord, degrees)) * degrees.tensor + coord.tensor;
}

int rest_of(const Coord& coord, const Degrees& degrees) {
  return data_place(coord, degrees) / degrees.expert;
}

}  // namespace trireme
