#pragma once

#include <memory>
#include <string>

#include "trireme/config/config.h"
#include "trireme/nn/model.h"
#include "trireme/ps/job.h"
#include "trireme/ps/role.h"

namespace trireme::train {

/// The configuration of one worker: a mesh of its own, whose replicas are the other workers.
config::Config config_of_worker(config::Config config);

/// The same for what looks at the rows of a step, such as a pipeline's micro-batches: batch.global
/// is that of the worker with most rows.
config::Config with_worker_rows(config::Config config, int64_t workers);

/// The mesh inside each worker.
Degrees degrees_of_worker(const config::Config& config);

/// The rule by which servers update: sync.optimizer, with the numbers of optim.*.
ps::RulePtr server_rule(const config::Config& config);

/// How far the data order goes.
struct ServerSteps {
  int64_t first = 0, steps = 0;  ///< steps of all workers: done before, and in all
  int64_t saved = 0;             ///< that the checkpoint has, maybe more
  std::string start_from = {};   ///< the checkpoint that has those before; empty: the seed
};

/// The job that all its processes must agree on. A step has a batch for each worker: its block of
/// the global batch. `whole`: the model without memory, as models::make_whole makes it under
/// nn::Deferred. The result keeps what it needs of it.
///
///   optim.*      the rule; the learning rate of a step comes with its pushes
///   sync.*       consistency, copies
///   compress.*   the filter of pushes
///   memory.shard, precision.*, mesh.*   what each rank of a worker keeps: one table a rank
ps::JobConfig server_job(const config::Config& config, nn::ModelImpl& whole,
                         const ServerSteps& steps, const ps::JobRole& role);

}  // namespace trireme::train
