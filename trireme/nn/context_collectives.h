#pragma once

#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/layout/positions.h"

namespace trireme::nn {

// Collectives of the ranks that share a sequence, which need not have as many positions each.
// Differentiable. Collective.

/// The rows of all ranks, one rank's after the other's; their gradients are summed back.
at::Tensor gather_rows(const at::Tensor& x, const comm::Communicator& group,
                       const comm::Rows& rows);

/// From a flat tensor, `to[r]` elements to rank r, and `from[r]` elements of rank r.
at::Tensor exchange(const at::Tensor& x, const comm::Communicator& group, const comm::Rows& to,
                    const comm::Rows& from);

/// How many positions each rank has.
comm::Rows counts_of(const std::vector<Positions>& ranks);

/// Picks positions in ascending order out of those of all ranks, one rank's after the other's.
at::Tensor in_order(const std::vector<Positions>& ranks, c10::Device device);

}  // namespace trireme::nn
