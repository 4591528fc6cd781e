#pragma once

#include <torch/nn/module.h>

#include "trireme/parallel/attached.h"

namespace trireme::parallel {

/// Throws unless every parameter is what this rank of the mesh holds of it, and of a kind that is
/// reduced here: experts are not yet.
void check_cut_on(const torch::nn::Module& module, const Mesh& mesh);

/// Do all ranks of the group hold the same parameters and buffers: names, shapes of the wholes,
/// dtypes, in the same order? Throws CommError on every rank, naming the first that differs and the
/// rank. Collective.
void check_same_module(const torch::nn::Module& module, const comm::Communicator& group);

/// Copies values to all ranks that hold the same: of parameters (that have memory) and buffers, or
/// buffers only. The first of those ranks gives them. Collective.
void broadcast_parameters(const torch::nn::Module& module, const Mesh& mesh);
void broadcast_buffers(const torch::nn::Module& module, const comm::Communicator& group);

/// Do all ranks keep the same values where they keep the same place of the same tensor, bit for
/// bit? Throws CommError on every rank if not, with the first that drifted and the two ranks.
/// Collective.
void check_same_values(const std::vector<ParameterShard>& shards, const Buffers& buffers,
                       const comm::Communicator& world);

}  // namespace trireme::parallel
