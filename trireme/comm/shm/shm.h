#pragma once

#include <memory>

#include "trireme/comm/backend.h"
#include "trireme/comm/process_world.h"

namespace trireme::comm {

/// The backend for processes on one host, through shared memory. Collective over the job's ranks.
std::shared_ptr<Backend> make_shm(ProcessWorld process);

}  // namespace trireme::comm
