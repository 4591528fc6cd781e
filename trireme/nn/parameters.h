#pragma once

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

#include "trireme/layout/layout.h"
#include "trireme/nn/init_rule.h"

namespace trireme::nn {

/// One parameter of a model, under the first name it was registered by. A tied weight is one.
struct Parameter {
  std::string name;
  at::Tensor tensor;
  Layout layout;                 ///< uncut where the module is not one of our layers
  std::optional<InitRule> init;  ///< none: it has the values that its module gave it
  Coord coord = {};              ///< whose part the tensor is ...
  Degrees degrees = {};          ///< ... on which mesh, as the layer was told when it was cut
  uint64_t seed = 0;             ///< what `initialize` was told, or 0
};

/// The part of a whole tensor that lies in a box. Shares its memory.
at::Tensor box_of(const at::Tensor& tensor, const Box& box);

/// The part of a rank's own tensor that is this box. Shares its memory.
at::Tensor part_of(const at::Tensor& tensor, const Held& held);

/// The distinct parameters of a module, in the order of registration.
std::vector<Parameter> parameters_of(const torch::nn::Module& root);

/// Names the layers, then gives every parameter with a rule its first values: element i of the
/// whole is a function of (seed, name, i), so that a rank can make only what it holds.
///
///   normal:   (u, v) uniform from Philox at (seed, XXH3-64 of the name, i / 2), Box-Muller in
///             double, the cosine for even i and the sine for odd, rounded to the dtype
///
/// Parameters without memory (built under `Deferred`) stay so: who gives them memory fills it by
/// `fill_piece`.
void initialize(torch::nn::Module& root, uint64_t seed);

/// All first values of a parameter that has memory, by its rule and seed.
void fill(const Parameter& parameter);

/// The first values of a piece of the parameter, into `to`, one after the other.
void fill_piece(const Parameter& parameter, const Piece& piece, const at::Tensor& to);

}  // namespace trireme::nn
