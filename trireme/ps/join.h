#pragma once

#include <functional>
#include <memory>
#include <string>

#include "trireme/ps/table.h"
#include "trireme/ps/training_step.h"

namespace trireme::ps {

class OneProcessJob;
class SnapshotFiles;
struct JobRole;

struct JoinOptions {
  /// A folder that all nodes see, for the snapshots that `JobConfig` asks for and one when all work
  /// is done. Empty: none are taken.
  std::string snapshots = {};
  int64_t keep = 3;                  ///< snapshots; older ones are deleted
  std::string listen = "127.0.0.1";  ///< the address at which manager and servers are reached
  /// Where lines about the job go; by default to stderr.
  std::function<void(const std::string&)> note = {};
};

/// This process as a worker of a job, with what it needs of the job while it is one.
class Worker {
 public:
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// As the launcher has completed it.
  const JobConfig& job() const { return job_; }
  /// Among the workers of the job.
  uint32_t index() const { return process_ / job_.worker_ranks; }
  /// Throws MisuseError if the job has no such table.
  Table table(const std::string& name) { return {*client_, name}; }
  Client& client() { return *client_; }

  /// See ps::train.
  const TrainingStep& train(const std::function<void(TrainingStep&)>& body) {
    return ps::train(*step_, body);
  }

 private:
  friend std::unique_ptr<Worker> join(JobConfig job, const JoinOptions& options);
  explicit Worker(JobConfig job);
  std::shared_ptr<const SnapshotFiles> snapshots(const JoinOptions& options) const;
  void start_alone(const JoinOptions& options);

  JobConfig job_;
  uint32_t process_ = 0;  ///< among those of all workers
  std::unique_ptr<OneProcessJob> alone_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<TrainingStep> step_;
};

/// Takes part in a job:
///
///   int main() {
///     const auto worker = ps::join({.servers = 2, .data = ..., .tables = {...}});
///     if (!worker) return 0;
///     auto weights = worker->table("weights");
///     worker->train([&](ps::TrainingStep& step) { pull, compute, push });
///   }
///
/// `trireme run --servers S --workers W PROGRAM` starts this program once for each role. In the
/// processes of the manager and the servers `join` does their work until the job is over, and
/// returns null. In a worker's it returns at once. The launcher's numbers take the place of the
/// job's name, servers, workers and worker_ranks.
///
/// Without a launcher the manager and the servers are threads of this process, and it is the only
/// worker.
std::unique_ptr<Worker> join(JobConfig job, const JoinOptions& options = {});

}  // namespace trireme::ps
