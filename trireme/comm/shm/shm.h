#pragma once

#include <memory>

#include "trireme/comm/backend.h"
#include "trireme/comm/process_world.h"

namespace trireme::comm {

/// Processes on one host, through shared memory. Collective over the job's ranks; this header is
/// all that the rest of Trireme sees of the backend.
std::shared_ptr<Backend> make_shm(ProcessWorld process);

}  // namespace trireme::comm
