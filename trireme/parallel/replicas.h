#pragma once

#include <torch/nn/module.h>

#include "trireme/parallel/attached.h"

namespace trireme::parallel {

/// Throws if a parameter is not cut as this rank of the mesh must hold it.
void check_cut_on(const torch::nn::Module& module, const Mesh& mesh);

/// Do all ranks of the group hold the same parameters and buffers: names, whole shapes,
/// dtypes, in the same order? Throws CommError on every rank, naming the first that differs and the
/// rank. Collective.
void check_same_module(const torch::nn::Module& module, const comm::Communicator& group);

/// Copies parameters (that have memory) and buffers, or buffers only, from the first rank that
/// holds them to all others that hold the same. Collective.
void broadcast_parameters(const torch::nn::Module& module, const Mesh& mesh, Reducer& reducer);
void broadcast_buffers(const torch::nn::Module& module, const comm::Communicator& group);

/// Throws CommError on every rank if two ranks that keep the same elements of a tensor have
/// different bits there; names the first such tensor and the two ranks. Collective.
void check_same_values(const std::vector<ParameterShard>& shards, const Buffers& buffers,
                       const comm::Communicator& world);

}  // namespace trireme::parallel
