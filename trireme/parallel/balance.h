#pragma once

#include <string>
#include <vector>

#include "trireme/mesh/mesh.h"
#include "trireme/nn/model.h"

namespace trireme::parallel {

/// How many links of a chain each stage has, in order.
using StageSizes = std::vector<int>;

/// The cut into so many stages whose dearest stage is cheapest; of several, the most even.
StageSizes cut_evenly(const std::vector<double>& costs, int stages);

/// So many layers (links that count) for each stage. What stands before the first layer goes with
/// the first stage, what stands behind the last with the last. Throws ConfigError with the numbers.
StageSizes cut_by_hand(const nn::Chain& chain, const std::vector<int>& layers);

/// The elements of each link's parameters, the whole's.
std::vector<double> parameter_costs(const nn::Chain& chain);

/// Seconds of forward and backward of each link on a micro-batch of so many rows, measured now, and
/// averaged over all ranks: the same on each. One link at a time has memory. Collective.
std::vector<double> time_costs(nn::ModelImpl& model, const nn::Chain& chain, const Mesh& mesh,
                               int64_t rows);

/// By "time", "params" or a list such as "3,5,5,3". Throws ConfigError for more stages than there
/// are links, a list of another length or sum. Collective.
StageSizes balance(nn::ModelImpl& model, const Mesh& mesh, const std::string& how, int stages,
                   int64_t rows);

/// "embed, h.0, h.1 | h.2, h.3, head": for people.
std::string describe(const nn::Chain& chain, const StageSizes& sizes);

}  // namespace trireme::parallel
