#pragma once

#include "trireme/core/error.h"
#include "trireme/mesh/mesh.h"

namespace trireme::models {

/// Throws ConfigError if the mesh has an axis that the layers of these models cannot be cut along.
/// `has_experts`: the expert axis deals them to ranks.
inline void require_uncut(const Mesh& mesh, const char* model, bool has_experts = false) {
  for (const Axis axis : {Axis::Context, Axis::Expert}) {
    if (mesh.size(axis) != 1 && !(axis == Axis::Expert && has_experts))
      throw ConfigError(
          fmt::format("{} cannot be cut {} ways along {} yet; it can be replicated, sharded, and "
                      "cut along tensor and pipe",
                      model, mesh.size(axis), to_string(axis)));
  }
}

}  // namespace trireme::models
