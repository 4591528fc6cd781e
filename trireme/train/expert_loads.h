#pragma once

#include <string>
#include <vector>

#include "trireme/nn/router.h"
#include "trireme/parallel/attached.h"

namespace trireme::train {

/// How the experts of every layer were used in the last step, in the order of the layers; those of
/// the other stages of a pipeline too. Empty for a model without experts. Collective over the pipe
/// axis.
std::vector<nn::ExpertLoad> expert_loads(const parallel::Attached& attached);

/// As metrics.jsonl has it: a list with an object for each layer.
///
///   [{"layer":"h.0.moe.router","load":[0.27,0.23,...],"max":1.08,"entropy":1.38,"dropped":0,
///     "balance":1.003,"z":2.1}, ...]
///
/// `load` is the part of the tokens' choices that fell on each expert, `max` the largest over the
/// mean, `entropy` that of the load in nats.
std::string to_json(const std::vector<nn::ExpertLoad>& loads);

}  // namespace trireme::train
