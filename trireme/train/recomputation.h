#pragma once

#include "trireme/config/config.h"
#include "trireme/mesh/mesh.h"
#include "trireme/nn/model.h"
#include "trireme/nn/recompute.h"
#include "trireme/pipeline/schedule.h"

namespace trireme::train {

/// Does any micro-batch of the rank go backward right after its forward?
bool backward_follows(const pipeline::Program& program);

/// Throws ConfigError if "except_last" would recompute everything.
void check_except_last(const config::Config& config, const Degrees& degrees);

/// Makes backward recompute what `memory.recompute` says. Returns the switch that a pipeline must
/// turn, or null. Throws ConfigError if the model has no chain to cut into segments, or the
/// schedule nothing that need not be recomputed.
nn::RecomputeSwitchPtr recompute(const config::Config& config, const Mesh& mesh,
                                 nn::ModelImpl& model);

/// What a rank of a pipeline has in flight.
struct InFlight {
  double stage_layers = 0;       ///< of one stage
  double in_flight = 1;          ///< micro-batches, counted per stage and added up
  bool backward_follows = true;  ///< some micro-batch goes backward right after its forward
};

/// The peak bytes of activations of a rank. Models know those of layers that keep everything, and
/// of layers that are recomputed one by one; "sqrt" and "except_last" follow from these. Without a
/// pipeline `stages` is not used.
int64_t activation_bytes(const config::Config& config, nn::ModelImpl& whole, nn::Batching of,
                         const InFlight& stages);

}  // namespace trireme::train
