#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trireme/mesh/mesh.h"
#include "trireme/nn/layer.h"

namespace trireme::nn {

/// Which layers are cut how: patterns of layer names. `*` stands for any characters but dots.
///
///   using enum nn::Style;
///   nn::cut(*model, {{"blocks.*.up", Column}, {"blocks.*.down", Row}}, mesh);
using Plan = std::vector<std::pair<std::string, Style>>;

/// Cuts the layers below `root` over the tensor axis of the mesh: from here on they hold this
/// rank's part of their weights, and compute together with the other ranks of the axis. Comes
/// before `initialize`. With Sequence::Cut the activations between Row and Column layers are parts
/// of the positions; every layer with parameters that works on such a part is to be named as
/// Positions.
///
/// Throws MisuseError, before anything is cut, for a pattern that matches nothing, a layer that two
/// patterns want cut differently, a module that cannot be cut, and sizes that cannot be.
void cut(torch::nn::Module& root, const Plan& plan, const Mesh& mesh,
         Sequence sequence = Sequence::Whole);

/// Does `name` match?
bool matches(std::string_view pattern, std::string_view name);

}  // namespace trireme::nn
