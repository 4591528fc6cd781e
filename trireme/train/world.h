#pragma once

#include <c10/core/Device.h>

#include <functional>

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"

namespace trireme::train {

/// Where this rank computes: a GPU where there is one (ranks take turns where there are fewer), or
/// as run.device says. Throws ConfigError where that cannot be.
c10::Device pick_device(const config::Config& config, const comm::Communicator& world);

/// How many ranks the job has, as the launcher said: known before it is joined. Throws ConfigError.
int num_ranks(const config::Config& config);

/// Joins the job (or, with comm.backend = "local", makes the ranks as threads of this process) and
/// runs `body` on each rank, set up as the configuration says: backend, timeouts, threads, memory.
/// Returns the exit code of the body; of several threads, the largest.
int with_ranks(const config::Config& config,
               const std::function<int(const comm::Communicator& world)>& body);

}  // namespace trireme::train
