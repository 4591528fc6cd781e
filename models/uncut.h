#pragma once

#include "trireme/core/error.h"
#include "trireme/mesh/mesh.h"

namespace trireme::models {

/// What these models' layers have no cut for yet.
inline void require_uncut(const Mesh& mesh, const char* model) {
  for (const Axis axis : {Axis::Context, Axis::Expert}) {
    if (mesh.size(axis) != 1)
      throw ConfigError(
          fmt::format("{} cannot be cut {} ways along {} yet; it can be replicated, sharded, and "
                      "cut along tensor and pipe",
                      model, mesh.size(axis), to_string(axis)));
  }
}

}  // namespace trireme::models
