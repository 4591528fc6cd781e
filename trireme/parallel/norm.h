#pragma once

#include <vector>

#include "trireme/parallel/kept.h"

namespace trireme::parallel {

/// The 2-norm of all gradients of the model together, whoever holds them: each element counts once.
/// Undefined ones count as 0. Collective over the axes that cut; the same bits on every rank.
double gradient_norm(const std::vector<Kept>& kept, const Mesh& mesh);

}  // namespace trireme::parallel
