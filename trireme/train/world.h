#pragma once

#include <c10/core/Device.h>

#include <functional>

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"

namespace trireme::train {

/// Whether ranks compute on GPUs: as run.device says, or where there are some. Throws ConfigError
/// where run.device asks for one and there is none.
bool uses_cuda(const config::Config& config);

/// Where this rank computes; where there are fewer GPUs than ranks they take turns.
c10::Device pick_device(const config::Config& config, const comm::Communicator& world);

/// How many ranks the job has, as the launcher said: known before it is joined. Throws ConfigError,
/// also where ranks that are threads would be made in each of several processes.
int num_ranks(const config::Config& config);

/// The same before anything is started: as many as the mesh asks for where there is no launcher.
int planned_ranks(const config::Config& config);

/// This process's rank, as the launcher said.
int own_rank();

/// Joins the job (or, with comm.backend = "local", makes the ranks as threads of this process) and
/// runs `body` on each rank, set up as the configuration says: backend, timeouts, threads, memory.
/// Returns the exit code of the body; of several threads, the largest.
int with_ranks(const config::Config& config,
               const std::function<int(const comm::Communicator& world)>& body);

}  // namespace trireme::train
