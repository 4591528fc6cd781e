#pragma once

#include <array>

#include "trireme/layout/axis.h"

namespace trireme {

/// The field that belongs to `axis` in a struct with an int for each axis (Degrees, Coord).
template <class PerAxis>
int field_of(const PerAxis& values, Axis axis) {
  constexpr std::array<int PerAxis::*, 6> kFields = {&PerAxis::pipe,   &PerAxis::replica,
                                                     &PerAxis::shard,  &PerAxis::context,
                                                     &PerAxis::expert, &PerAxis::tensor};
  return values.*kFields[static_cast<std::size_t>(axis)];
}

}  // namespace trireme
