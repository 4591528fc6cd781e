#pragma once

#include <vector>

#include "trireme/mesh/mesh.h"
#include "trireme/nn/parameters.h"

namespace trireme::parallel {

/// The 2-norm of all gradients of the model together, whoever holds them: each element counts once.
/// Undefined ones count as 0. Collective over the tensor axis; the same bits on every rank.
double gradient_norm(const std::vector<nn::Parameter>& parameters, const Mesh& mesh);

}  // namespace trireme::parallel
