#pragma once

#include <functional>

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"

namespace trireme::train {

/// Joins the job (or, with comm.backend = "local", makes the ranks as threads of this process) and
/// runs `body` on each rank, set up as the configuration says: backend, timeouts, threads, memory.
/// Returns the exit code of the body; of several threads, the largest.
int with_ranks(const config::Config& config,
               const std::function<int(const comm::Communicator& world)>& body);

}  // namespace trireme::train
