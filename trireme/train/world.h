#pragma once

#include <c10/core/Device.h>

#include <functional>

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"

namespace trireme::train {

/// Do ranks compute on GPUs? As run.device says; by default if there are any. Throws ConfigError if
/// run.device asks for a GPU and there is none.
bool uses_cuda(const config::Config& config);

/// The device of this rank. If there are fewer GPUs than ranks, several ranks share one.
c10::Device pick_device(const config::Config& config, const comm::Communicator& world);

/// How many ranks the job has, as the launcher says, before the job is joined. Throws ConfigError
/// if each of several processes would make ranks as threads.
int num_ranks(const config::Config& config);

/// The same for a job that is not started yet: without a launcher, as many as the mesh asks for.
int planned_ranks(const config::Config& config);

/// The rank of this process, as the launcher says.
int own_rank();

/// Joins the job (or, with comm.backend = "local", makes the ranks as threads of this process) and
/// runs `body` on each rank, set up as the configuration says: backend, timeouts, threads, memory,
/// determinism.
/// Returns the exit code of the body; of several threads, the largest.
int with_ranks(const config::Config& config,
               const std::function<int(const comm::Communicator& world)>& body);

}  // namespace trireme::train
