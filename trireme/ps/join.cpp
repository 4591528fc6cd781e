#include "trireme/ps/join.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "trireme/ps/one_process_job.h"
#include "trireme/ps/role.h"
#include "trireme/ps/snapshot_files.h"

namespace trireme::ps {

namespace {

JobConfig completed(JobConfig job, const std::optional<JobRole>& role) {
  if (role) {
    job.name = role->job;
    job.servers = role->servers;
    job.workers = role->workers;
    job.worker_ranks = role->worker_ranks;
  } else {
    job.workers = job.worker_ranks = 1;
  }
  check(job);
  return job;
}

void check_snapshots(const JobConfig& job, const JoinOptions& options) {
  const bool wanted = job.data.snapshot_steps > 0 || job.timing.snapshot_every > Time::zero();
  core::check(!wanted || !options.snapshots.empty(),
              "job '{}' wants snapshots, but has no folder for them: set JoinOptions::snapshots",
              job.name);
}

}  // namespace

Worker::Worker(JobConfig job) : job_(std::move(job)) {}

Worker::~Worker() = default;

/// The folder is needed also to begin with somebody else's checkpoint.
std::shared_ptr<const SnapshotFiles> Worker::snapshots(const JoinOptions& options) const {
  if (options.snapshots.empty() && job_.start_from.empty()) return nullptr;
  return std::make_shared<const SnapshotFiles>(
      job_, SnapshotFiles::Options{.folder = options.snapshots, .keep = options.keep});
}

void Worker::start_alone(const JoinOptions& options) {
  alone_ = std::make_unique<OneProcessJob>(job_, snapshots(options));
  if (!options.snapshots.empty()) alone_->want_last_snapshot();
}

std::unique_ptr<Worker> join(JobConfig given, const JoinOptions& options) {
  const auto role = role_of_environment();
  const auto note = options.note ? options.note : [](const std::string& line) {
    fmt::print(stderr, "{}\n", line);
  };
  std::unique_ptr<Worker> worker(new Worker(completed(std::move(given), role)));
  check_snapshots(worker->job_, options);
  if (role && role->node.role != Role::Worker) {
    serve(worker->job_, *role,
          {.listen = options.listen,
           .snapshots = worker->snapshots(options),
           .last_snapshot = !options.snapshots.empty(),
           .note = note});
    return nullptr;
  }
  if (!role) worker->start_alone(options);
  NodeOptions node = role ? node_options(*role, worker->job_) : worker->alone_->options();
  node.note = note;
  worker->process_ = role ? role->node.index : 0;
  worker->client_ = std::make_unique<Client>(std::move(node), worker->job_, worker->process_);
  worker->step_ = std::make_unique<TrainingStep>(*worker->client_, worker->process_);
  return worker;
}

}  // namespace trireme::ps
