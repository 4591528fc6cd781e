#pragma once

#include <memory>

#include "trireme/comm/backend.h"
#include "trireme/comm/bootstrap.h"

namespace trireme::comm {

/// Processes on one host, through shared memory. Collective over the job's ranks; this header is
/// all that the rest of Trireme sees of the backend.
std::shared_ptr<Backend> make_shm(const Bootstrap& bootstrap);

}  // namespace trireme::comm
