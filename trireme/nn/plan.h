#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trireme/mesh/mesh.h"
#include "trireme/nn/context_region.h"
#include "trireme/nn/layer.h"

namespace trireme::nn {

/// The style of each layer, by patterns of layer names. `*` matches any characters except dots.
///
///   using enum nn::Style;
///   nn::cut(*model, {{"blocks.*.up", Column}, {"blocks.*.down", Row}}, mesh);
using Plan = std::vector<std::pair<std::string, Style>>;

/// Cuts the layers below `root` over the tensor axis of the mesh, and experts over the expert axis
/// too: they then hold this rank's part of their weights, and compute together with the other ranks
/// of the axis. Call it before
/// `initialize`. With Sequence::Cut each rank has a part of the positions between Row and Column
/// layers; the plan must name every layer with parameters that works on such a part as Positions.
///
/// If the mesh has a context axis, the CausalAttention layers below `root` share each sequence with
/// its ranks: the Flow must say which positions this rank has (`Where::positions`).
///
/// Throws MisuseError, before it cuts anything, if a pattern matches nothing, two patterns give a
/// layer different styles, a module cannot be cut, or a rank would get nothing.
void cut(torch::nn::Module& root, const Plan& plan, const Mesh& mesh,
         Sequence sequence = Sequence::Whole, ContextKind context = ContextKind::Ring);

/// Does the name match the pattern?
bool matches(std::string_view pattern, std::string_view name);

}  // namespace trireme::nn
