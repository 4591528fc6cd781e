#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "trireme/comm/communicator.h"

namespace trireme {

/// How to join a job. What is not set here comes from the environment, which only `init` reads and
/// nothing below it: two worlds of one process may have different options.
struct InitOptions {
  /// How the ranks find each other (TRIREME_INIT):
  ///   env://                            RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as `trireme
  ///                                     run` and torchrun set them; else Open MPI's, PMI's or
  ///                                     Slurm's variables; else a world of one
  ///   tcp://host:port?rank=0&size=4     rank 0 listens there
  ///   file:///path?rank=0&size=4        through a file that all ranks can reach
  std::string url = {};
  /// What carries the data (TRIREME_BACKEND): "shm", "tcp", or "auto": shm on one host, tcp on
  /// several, and NCCL for tensors on GPUs if every rank has a GPU of its own. "nccl": the same,
  /// and an error if NCCL cannot be used.
  std::optional<std::string> backend = {};
  /// How long an operation, and `init` itself, may wait (TRIREME_TIMEOUT_S; 300 s).
  std::optional<std::chrono::nanoseconds> timeout = {};
  /// How long a process may be silent before it counts as hung (TRIREME_HEARTBEAT_S; 10 s).
  std::optional<std::chrono::nanoseconds> heartbeat = {};
  /// tcp: the most Mbit/s that a connection carries in each direction (TRIREME_RATE_MBIT); 0: no
  /// limit.
  std::optional<double> rate_mbit = {};
  /// The folder for records of recent operations after a failure (TRIREME_RECORD_DIR); "": none.
  std::optional<std::string> record_dir = {};
};

/// Joins the job that this process was started for, and returns the communicator of all its ranks.
/// Throws a CommError that names a rank that is missing, started twice, or of another job.
/// Collective.
comm::Communicator init(const InitOptions& options = {});
comm::Communicator init(const std::string& url);

}  // namespace trireme
