#pragma once

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

#include "trireme/layout/layout.h"
#include "trireme/nn/init_rule.h"

namespace trireme::nn {

/// One parameter of a model, by the first name under which it was registered. A tied weight is one
/// parameter.
struct Parameter {
  std::string name;
  at::Tensor tensor;
  Layout layout;                 ///< uncut if its module is not one of our layers
  std::optional<InitRule> init;  ///< if none, its module has given it its values
  Coord coord = {};              ///< the rank whose part the tensor is ...
  Degrees degrees = {};          ///< ... on a mesh of these degrees, as of when the layer was cut
  uint64_t seed = 0;             ///< the one that `initialize` was given, or 0
};

/// The part of a tensor that a box covers. Shares its memory.
at::Tensor box_of(const at::Tensor& tensor, const Box& box);

/// The part of a rank's local tensor that holds this box. Shares its memory.
at::Tensor part_of(const at::Tensor& tensor, const LocalBox& held);

/// The distinct parameters of a module, in the order of registration.
std::vector<Parameter> parameters_of(const torch::nn::Module& root);

/// Names the layers, then initializes every parameter that has a rule. Element i of the whole is a
/// function of (seed, name, i), so that a rank computes only the elements that it holds.
///
///   normal:   (u, v) uniform from Philox at (seed, XXH3-64 of the name, i / 2), Box-Muller in
///             double, the cosine for even i and the sine for odd, rounded to the dtype
///
/// Parameters without memory (built under `Deferred`) stay as they are; whoever gives them memory
/// then calls `fill` or `fill_piece`.
void initialize(torch::nn::Module& root, uint64_t seed);

/// Writes the initial values of a parameter that has memory, by its rule and seed.
void fill(const Parameter& parameter);

/// Writes the initial values of a piece of the parameter to `to`, one after the other.
void fill_piece(const Parameter& parameter, const Piece& piece, const at::Tensor& to);

/// 16 random bits, as int16, for each element of a piece, one after the other: a function of (seed,
/// name, `step`, element), so that they are the same however the parameter is cut.
at::Tensor random_bits(const Parameter& parameter, const Piece& piece, int64_t step);

}  // namespace trireme::nn
