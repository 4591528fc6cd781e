#pragma once

#include "trireme/config/config.h"
#include "trireme/layout/degrees.h"

namespace trireme::config {

/// The degrees of a world of `world_size` ranks, a 0 replaced by what the others leave. Throws
/// ConfigError with the numbers where they do not make that world.
Degrees resolve_mesh(const MeshKeys& mesh, int world_size);
/// The same, and throws if the replicas of these degrees cannot be synchronised as `sync` asks.
Degrees degrees_of(const Config& config, int world_size);

/// How many ranks to start for this mesh; a 0 counts as 1. Throws ConfigError for 100000 or more.
int wanted_ranks(const MeshKeys& mesh);

}  // namespace trireme::config
