#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/mesh/mesh.h"
#include "trireme/nn/model.h"

namespace trireme::parallel {

/// How many places of a chain each stage has, in order.
using StageSizes = std::vector<int>;

/// The cut of links into so many stages whose dearest stage is cheapest; of several, the most even.
/// `edges[i]`: what it costs the stages on both sides to cut before link i.
StageSizes cut_evenly(const std::vector<double>& costs, int stages,
                      const std::vector<double>& edges = {});

/// So many layers (links that count) for each stage. What stands before the first layer goes with
/// the first stage, what stands behind the last with the last. Throws ConfigError with the numbers.
StageSizes cut_by_hand(const nn::Chain& chain, const std::vector<int>& layers);

/// The elements of each link's parameters.
std::vector<double> parameter_costs(const nn::Chain& chain);

/// Seconds, measured now, the same on every rank.
struct Measured {
  std::vector<double> places;  ///< forward and backward of each
  std::vector<double> edges;   ///< moving forwards what goes into each, and back its gradient
};
/// On micro-batches of so many rows. One place at a time has memory. Collective.
Measured measure(nn::ModelImpl& model, const nn::Chain& chain, const Mesh& mesh, int64_t rows);

/// What makes the stages of a pipeline even.
struct Balance {
  enum class By : uint8_t { Time, Parameters, Layers };
  By by = By::Parameters;
  std::vector<int> layers = {};  ///< by Layers: how many each stage has
};

/// Cuts the model into stages. Throws ConfigError where there are more stages than links, or where
/// the list of layers has another length or sum. Collective.
StageSizes balance(nn::ModelImpl& model, const Mesh& mesh, const Balance& how, int stages,
                   int64_t rows);

/// "embed, h.0, h.1 | h.2, h.3, head": for people.
std::string describe(const nn::Chain& chain, const StageSizes& sizes);

}  // namespace trireme::parallel
