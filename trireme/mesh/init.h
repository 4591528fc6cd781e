#pragma once

#include <string>

#include "trireme/comm/communicator.h"

namespace trireme {

/// Joins the job that this process was started for, and returns the communicator of all its ranks.
///
/// `url` (or TRIREME_INIT) says how the ranks find each other:
///   env://                            RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as `trireme run`
///                                     and torchrun set them; else Open MPI's, PMI's or Slurm's
///                                     variables; else a world of one
///   tcp://host:port?rank=0&size=4     rank 0 listens there
///   file:///path?rank=0&size=4        through a file that all ranks can reach
///
/// TRIREME_BACKEND=auto|shm|tcp picks what carries the data; auto: shm on one host, tcp on several.
/// Throws CommError that names the rank that is missing, double, or does not belong. Collective.
comm::Communicator init(const std::string& url = "");

}  // namespace trireme
