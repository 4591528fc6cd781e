#pragma once

#include <memory>

#include "trireme/comm/backend.h"
#include "trireme/comm/process_world.h"

namespace trireme::comm {

/// The backend for processes on one host or several, over sockets: every rank has a connection to
/// every other. Collective over the job's ranks.
std::shared_ptr<Backend> make_tcp(ProcessWorld process);

}  // namespace trireme::comm
