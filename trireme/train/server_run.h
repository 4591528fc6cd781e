#pragma once

#include <functional>
#include <memory>

#include "trireme/config/config.h"
#include "trireme/train/attach.h"

namespace trireme::train {

/// Makes the whole model for a mesh of these degrees, to read names, shapes and rules from.
using WholeModelFactory =
    std::function<std::shared_ptr<nn::ModelImpl>(const config::Config&, const Degrees&)>;
/// Makes the model of a worker's rank.
using WorkerModelFactory =
    std::function<std::shared_ptr<nn::ModelImpl>(const config::Config&, const Mesh&)>;

/// Throws ConfigError for a run on servers that cannot be: too little memory, or other weights in
/// model.from. One process asks this before the others start.
void check_servers(const config::Config& config, const WholeModelFactory& whole);

/// One process of a run whose weights live on servers (sync.kind = "stale" or "free"): the manager,
/// a server, or a rank of a worker, as the launcher has said in its environment.
///
///   manager    hands out work; writes metrics.jsonl, the lines for people, and checkpoints' index
///   server     holds ranges of the weights and updates them; writes its parts of checkpoints
///   worker     work ──> begin, step, push ──> report ──> manager
///
/// Returns the exit code: kTryAgain where another start may help.
constexpr int kTryAgain = 75;
int run_on_servers(const config::Config& config, const WholeModelFactory& whole,
                   const WorkerModelFactory& model);

}  // namespace trireme::train
