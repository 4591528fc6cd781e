#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/launch/options.h"

namespace trireme::launch {

/// What the processes of a unit are in a parameter server job, and how large that is.
struct UnitRole {
  enum class Kind { Manager, Server, Worker } kind = Kind::Manager;
  int index = 0;
  int servers = 1;
  int workers = 1;
  int worker_ranks = 1;
  std::string manager;  ///< where it is

  /// "manager", "server 1".
  std::string name() const;
};

/// What all ranks of one attempt of a unit are told: the options, with their defaults filled in.
/// A unit is what restarts together: all ranks of the job, or the manager, a server, or a worker
/// with its ranks. Each of these is a world of its own.
struct Job {
  std::optional<UnitRole> role;  ///< none: the ranks are the whole job
  int num_ranks = 1;
  int num_hosts = 1;
  int host = 0;
  std::string master_addr;
  int master_port = 0;
  std::string run_id;
  std::string secret;  ///< empty: the ranks use TRIREME_SECRET(_FILE) or the user's key
  int attempt = 0;
  int max_restarts = 0;
  bool ends = false;    ///< of a manager: the launcher was told to end the job
  bool colour = false;  ///< the ranks' output is shown on a terminal with colours

  int rank(int local_rank) const { return host * num_ranks + local_rank; }
  int num_busy() const { return role ? role->workers * role->worker_ranks : num_ranks; }
  /// Whether a single process is the whole job.
  bool is_one_process() const { return !role && num_hosts * num_ranks == 1; }
  /// How lines and folders name a rank: "3", or "worker 1", or "worker 1.3" where a worker has
  /// several ranks.
  std::string label(int local_rank) const;
};

/// The environment of a local rank as "NAME=value" entries: the launcher's own plus the variables
/// that torchrun sets, so that a program does not see which of the two started it.
std::vector<std::string> rank_environment(const Job& job, int local_rank);

/// A random name for a run, such as "k3x0a9f2".
std::string random_run_id();

}  // namespace trireme::launch
