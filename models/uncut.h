#pragma once

#include "trireme/core/error.h"
#include "trireme/mesh/mesh.h"

namespace trireme::models {

/// A model whose layers have no layouts yet is whole on every rank: it may be replicated, not cut.
inline void require_uncut(const Mesh& mesh, const char* model) {
  for (const Axis axis : {Axis::Pipe, Axis::Shard, Axis::Context, Axis::Tensor, Axis::Expert}) {
    if (mesh.size(axis) != 1)
      throw ConfigError(fmt::format("{} cannot be cut {} ways along {} yet; it can be replicated",
                                    model, mesh.size(axis), to_string(axis)));
  }
}

}  // namespace trireme::models
