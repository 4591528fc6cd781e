#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/mesh/mesh.h"
#include "trireme/nn/model.h"

namespace trireme::parallel {

/// How many places of a chain each stage has, in order.
using StageSizes = std::vector<int>;

/// Cuts links into stages so that the most expensive stage costs as little as possible; among such
/// cuts it takes the most even one. `edges[i]`: what a cut before link i costs the stages on both
/// sides.
StageSizes cut_evenly(const std::vector<double>& costs, int stages,
                      const std::vector<double>& edges = {});

/// Gives each stage its number of layers (links that count). Links before the first layer go to the
/// first stage, links behind the last layer to the last. Throws ConfigError with the numbers.
StageSizes cut_by_hand(const nn::Chain& chain, const std::vector<int>& layers);

/// The elements of each link's parameters.
std::vector<double> parameter_costs(const nn::Chain& chain);

/// Measured seconds, the same on every rank.
struct Measured {
  std::vector<double> places;  ///< forward and backward of each
  std::vector<double> edges;   ///< sending the input of each forward, and its gradient back
};
/// Runs micro-batches of `rows` rows. One place at a time has memory. Collective.
Measured measure(nn::ModelImpl& model, const nn::Chain& chain, const Mesh& mesh, int64_t rows);

/// By which measure the stages of a pipeline are balanced.
struct Balance {
  enum class By : uint8_t { Time, Parameters, Layers };
  By by = By::Parameters;
  std::vector<int> layers = {};  ///< by Layers: how many each stage has
};

/// Cuts the model into stages. Throws ConfigError if there are more stages than links, or if the
/// list of layers has the wrong length or sum. Collective.
StageSizes balance(nn::ModelImpl& model, const Mesh& mesh, const Balance& how, int stages,
                   int64_t rows);

/// "embed, h.0, h.1 | h.2, h.3, head": for people.
std::string describe(const nn::Chain& chain, const StageSizes& sizes);

}  // namespace trireme::parallel
