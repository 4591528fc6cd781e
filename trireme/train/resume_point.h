#pragma once

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/core/json.h"
#include "trireme/format/load.h"
#include "trireme/parallel/balance.h"

namespace trireme::train {

/// The step of the checkpoint that the run will continue from; 0 if there is none. Reads the names
/// of the folder only, unless checkpoint.resume names one. Collective.
int64_t step_to_resume(const config::Config& config, const comm::Communicator& world);

/// How the pipeline was cut in that checkpoint; empty if there is none, or it had no pipeline.
/// Collective.
parallel::StageSizes cut_to_resume(const config::Config& config, const comm::Communicator& world);

/// Throws ConfigError, with the first difference, if the checkpoint belongs to another run. `data`:
/// the facts of the data that this run trains on.
void check_fits(const format::Checkpoint& saved, const config::Config& config,
                const core::Json& data);

/// Throws ConfigError if the run's folder holds a checkpoint after `step`: the run would later
/// resume from that one.
void refuse_newer(const config::Config& config, int64_t step);

}  // namespace trireme::train
