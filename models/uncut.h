#pragma once

#include <initializer_list>

#include "trireme/core/error.h"
#include "trireme/mesh/mesh.h"

namespace trireme::models {

/// Throws ConfigError if the mesh has an axis that the layers of a model cannot be cut along.
inline void require_uncut(const Mesh& mesh, const char* model,
                          std::initializer_list<Axis> axes = {Axis::Context, Axis::Expert}) {
  for (const Axis axis : axes) {
    if (mesh.size(axis) != 1)
      throw ConfigError(
          fmt::format("{} cannot be cut {} ways along {}; it can be replicated, sharded, and cut "
                      "along tensor and pipe",
                      model, mesh.size(axis), to_string(axis)));
  }
}

}  // namespace trireme::models
