#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/state.h"
#include "trireme/config/config.h"
#include "trireme/format/load.h"
#include "trireme/optim/resumable.h"
#include "trireme/parallel/attached.h"
#include "trireme/parallel/local_updates.h"

namespace trireme::train {

/// Do replicas train on their own between meetings?
bool is_local(const config::Config& config);

/// The meshes of such a run; nothing where replicas stay in lockstep. Collective.
std::optional<parallel::ReplicaMeshes> replica_meshes(const config::Config& config,
                                                      const Mesh& mesh);

/// What `sync.kind` asks for, on the shards of one replica. Throws ConfigError.
std::unique_ptr<parallel::LocalUpdates> make_local_updates(
    const config::Config& config, const parallel::ReplicaMeshes& meshes,
    const std::vector<parallel::ParameterShard>& shards);

/// Who shares the writing of a tensor that `same` keep alike in lockstep. Of a replica that trains
/// on its own: not its inner group, whose first member writes all. Of what all replicas have alike:
/// these, too.
RankSet writers_of_own(RankSet same);
RankSet writers_of_common(RankSet same);

/// A checkpoint of replicas that differ: the common starting point under the parameters' own names
/// (so that any run, `ckpt` and exports see it), and each replica's state under `replica.N/`.
///
///   wte.weight                       the common starting point
///   outer/diloco/wte.weight          what the outer optimizer remembers
///   buffer/bn1.running_mean          the mean of the replicas'
///   replica.0/wte.weight             the weights of replica 0, and the state of its optimizer
///   replica.0/optim/exp_avg/wte.weight
///
/// `own`: the state of this rank's replica. Collective.
checkpoint::State with_replicas(checkpoint::State own, parallel::LocalUpdates& local);

/// The mean of a buffer over the replicas, such as a running mean's; of counts it is rounded.
/// Collective.
at::Tensor common_buffer(const at::Tensor& buffer, const parallel::ReplicaMeshes& meshes);

/// While it exists, the buffers have their common values, for evaluation with the common weights.
/// To construct it is collective.
class CommonBuffers {
 public:
  CommonBuffers(const parallel::Buffers& buffers, const parallel::ReplicaMeshes& meshes);
  ~CommonBuffers();
  CommonBuffers(const CommonBuffers&) = delete;
  CommonBuffers& operator=(const CommonBuffers&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> own_;  // with the values of this replica
};

struct LoadedState {
  core::Json extra;  ///< to restore this replica from
  std::string note;  ///< what people should know; empty: nothing
};

/// Fills the state of a replica, and the common tensors, from any checkpoint: of as many replicas,
/// each gets its own back; of another number, all begin at a meeting of these, with the mean of
/// their optimizers' states; of a run in lockstep, at its weights. `local`: null where the run that
/// continues is in lockstep.
LoadedState load_replicas(format::Checkpoint& from, const checkpoint::State& own,
                          parallel::LocalUpdates* local);

}  // namespace trireme::train
