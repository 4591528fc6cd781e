#pragma once

#include "trireme/launch/options.h"

namespace trireme::launch {

/// Starts the ranks of this host, or the roles of a parameter server job, watches them, restarts
/// them where asked to, and returns the exit code of the job: 0, the first failing rank's code, 128
/// + the signal that killed it, or 127 and 126 where the program cannot be started. No process that
/// it started is left when it returns or is killed. Throws ConfigError for invalid options.
int run(const RunOptions& options);

}  // namespace trireme::launch
