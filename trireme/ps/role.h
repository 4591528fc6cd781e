#pragma once

#include <functional>
#include <optional>
#include <string>

#include "trireme/ps/manager.h"
#include "trireme/ps/node_thread.h"

namespace trireme::ps {

/// What this process is in a job that `trireme run --servers S --workers W` has started.
struct JobRole {
  NodeId node = {};  ///< of a worker of several ranks: rank k of worker w is w x ranks + k
  uint32_t servers = 1, workers = 1, worker_ranks = 1;
  std::string job = "job";   ///< its name
  std::string manager = {};  ///< where the manager is: see make_manager_place
};

/// From TRIREME_ROLE and the variables beside it; nothing if they are not set. Throws ConfigError
/// for values that make no sense.
std::optional<JobRole> role_of_environment();

/// The options of a node of this role: secret and place of the manager as the environment says.
/// Manager and servers listen on `listen`, any port.
NodeOptions node_options(const JobRole& role, const JobConfig& job,
                         const std::string& listen = "127.0.0.1");

struct ServeOptions {
  std::string listen = "127.0.0.1";
  std::shared_ptr<const SnapshotFiles> snapshots = {};  ///< null: there are none
  bool last_snapshot = false;                           ///< the job ends with one
  /// See Manager::on_reports.
  std::function<Batch(Batch first, const std::map<Batch, std::string>&)> on_reports = {};
  /// Of the manager: called once when all work is done, with the last snapshot.
  std::function<void(const SnapshotOrder& last)> on_over = {};
  std::function<void(const std::string&)> note = {};  ///< by default to stderr
};

/// Runs the manager, or a server, until a signal ends it. The first SIGTERM, SIGINT or SIGHUP asks
/// the manager to end the job early, and a server to give its ranges to others; when the job is
/// over they end at once. A second signal before that ends them with an Error. Throws what ends the
/// node.
void serve(const JobConfig& job, const JobRole& role, const ServeOptions& options = {});

}  // namespace trireme::ps
