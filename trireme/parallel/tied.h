#pragma once

#include <map>
#include <string>
#include <vector>

#include "trireme/parallel/parameter_shard.h"
#include "trireme/parallel/reducer.h"

namespace trireme::parallel {

/// The parameters that several ranks of a pipeline hold under one name, as the embedding and the
/// head of a language model do, and the pipe ranks that hold each: the same on every rank. Each
/// holder has the gradient of its own use; `Reduction::later` adds them up. Collective over `pipe`.
std::map<std::string, Holders> find_tied(const std::vector<ParameterShard>& shards,
                                         const comm::Communicator& pipe);

/// Sets the reductions of a shard for the whole mesh: they include the stages that hold it.
void set_holders(ParameterShard& shard, const nn::Parameter& parameter, const Holders& holders,
                 const Mesh& mesh, const Policy& policy);

/// Copies the first holder's values of tied parameters to the other holders. Collective over the
/// pipe axis of the reducer's mesh.
void broadcast_tied(const std::vector<ParameterShard>& shards,
                    const std::map<std::string, Holders>& tied, const comm::Communicator& pipe,
                    Reducer& reducer);

}  // namespace trireme::parallel
