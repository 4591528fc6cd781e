#pragma once

#include <string_view>

#include "trireme/checkpoint/state.h"
#include "trireme/core/json.h"
#include "trireme/mesh/mesh.h"
#include "trireme/optim/resumable.h"
#include "trireme/parallel/attached.h"

namespace trireme::train {

/// The names of weights of the past begin with it, and with how many updates ago they were.
constexpr std::string_view kPastWeights = "past.";

/// Of a model with adapters: these, or all other parameters, which they belong to.
enum class WeightsOf : uint8_t { All, Adapters, Base };
/// The parameters and the buffers, as this rank keeps them.
checkpoint::State weights_of(const parallel::Attached& attached, WeightsOf of = WeightsOf::All);

/// Everything that must be saved of a model and its optimizer to continue as if nothing had
/// happened: parameters, buffers, the optimizer's tensors and counts, and the order in which
/// gradients are reduced. Any mesh can load it. Collective.
checkpoint::State state_of(parallel::Attached& attached, optim::Resumable& optimizer,
                           WeightsOf of = WeightsOf::All);

/// Throws ConfigError if another optimizer made the checkpoint.
void check_same_optimizer(const optim::Resumable& optimizer, const core::Json& extra);

/// Restores what is not a tensor, after the tensors of `state_of` were loaded. Collective.
void restore(parallel::Attached& attached, optim::Resumable& optimizer, const core::Json& extra);

}  // namespace trireme::train
