#pragma once

#include <memory>

#include "trireme/comm/backend.h"
#include "trireme/comm/world_options.h"

namespace trireme::comm {

/// Where the ranks of a local world meet: make one, and give it to every thread that is a rank.
class LocalHub;
std::shared_ptr<LocalHub> make_local_hub(int size);

/// Ranks that are threads of one process. All memory is seen by all of them, so every operation
/// works in place. Call it on the thread that is to be `rank`; returns at once.
std::shared_ptr<Backend> make_local(std::shared_ptr<LocalHub> hub, int rank,
                                    WorldOptions options = {});

}  // namespace trireme::comm
