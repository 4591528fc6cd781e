#pragma once

#include <torch/nn/module.h>

#include "trireme/comm/communicator.h"

namespace trireme::parallel {

/// Do all ranks of the group hold the same parameters and buffers: names, shapes, dtypes, in the
/// same order? Throws CommError on every rank, naming the first that differs and the rank.
/// Collective.
void check_same_module(const torch::nn::Module& module, const comm::Communicator& group);

/// Copies the values of the group's first rank to all: parameters and buffers, or buffers only.
/// Collective.
void broadcast_parameters(const torch::nn::Module& module, const comm::Communicator& group);
void broadcast_buffers(const torch::nn::Module& module, const comm::Communicator& group);

/// Do all ranks hold the same values, bit for bit? Throws CommError on every rank, naming the first
/// parameter that drifted and the rank whose value differs from the first rank's. Collective.
void check_same_values(const torch::nn::Module& module, const comm::Communicator& group);

}  // namespace trireme::parallel
