#pragma once

#include <string>
#include <vector>

#include "trireme/launch/options.h"

namespace trireme::launch {

/// What all ranks of one attempt are told: the options, with their defaults filled in.
struct Job {
  int num_ranks = 1;
  int num_hosts = 1;
  int host = 0;
  std::string master_addr;
  int master_port = 0;
  std::string run_id;
  std::string secret;  ///< empty: the ranks use TRIREME_SECRET(_FILE) or the user's key
  int attempt = 0;
  int max_restarts = 0;
  bool colour = false;  ///< the ranks' output is shown on a terminal with colours

  int rank(int local_rank) const { return host * num_ranks + local_rank; }
};

/// The environment of a local rank as "NAME=value" entries: the launcher's own plus the variables
/// that torchrun sets, so that a program does not see which of the two started it.
std::vector<std::string> rank_environment(const Job& job, int local_rank);

/// A random name for a run, such as "k3x0a9f2".
std::string random_run_id();

}  // namespace trireme::launch
