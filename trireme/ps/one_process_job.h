#pragma once

#include <memory>
#include <vector>

#include "trireme/ps/node_thread.h"
#include "trireme/ps/server_process.h"

namespace trireme::ps {

/// The manager and the servers of a job as threads of this process, so that a program runs without
/// a launcher, too. Nothing of it is on the disk, except snapshots where they are asked for. Must
/// outlive the job's clients: without it they wait for ever.
class OneProcessJob {
 public:
  explicit OneProcessJob(const JobConfig& job, std::shared_ptr<const SnapshotFiles> snapshots = {});

  /// The job ends with a snapshot.
  void want_last_snapshot();

  /// For the clients of the job.
  const NodeOptions& options() const { return options_; }

 private:
  NodeOptions options_;
  std::unique_ptr<NodeThread> manager_;
  std::vector<std::unique_ptr<ServerProcess>> servers_;
};

}  // namespace trireme::ps
