#pragma once

#include <memory>

#include "trireme/comm/backend.h"
#include "trireme/comm/world_options.h"

namespace trireme::comm {

/// What the ranks of a local world share: make one and pass it to every thread that is a rank.
class LocalHub;
std::shared_ptr<LocalHub> make_local_hub(int size);

/// The backend for ranks that are threads of one process. They see each other's memory, so every
/// operation works in place. Call it on the thread that is to be `rank`; returns at once.
std::shared_ptr<Backend> make_local(std::shared_ptr<LocalHub> hub, int rank,
                                    WorldOptions options = {});

}  // namespace trireme::comm
