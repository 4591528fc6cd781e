#pragma once

#include <functional>
#include <vector>

#include "trireme/layout/positions.h"
#include "trireme/nn/attention.h"
#include "trireme/nn/context_region.h"

namespace trireme::nn {

/// The mask of dropout for the weights that these queries give these keys, [B, heads, queries,
/// keys]; both as positions, `heads` as numbers of this rank's.
using DropoutOfWeights =
    std::function<at::Tensor(Range heads, const Positions& queries, const Positions& keys)>;

/// What attention over a sequence that several ranks share must know of a call, besides q, k and v.
struct ContextCall {
  Positions positions;        ///< of this rank: head_and_tail
  at::Tensor documents = {};  ///< Where::documents
  DropoutOfWeights dropout = {};
};

/// Causal attention of the queries of this rank to the keys of all ranks of the region, [B, H, T,
/// D]. Every rank has the positions that `head_and_tail` deals it. Differentiable, once. Throws
/// MisuseError, with the numbers, if the positions are others, or Ulysses has fewer heads than
/// ranks. Collective.
at::Tensor context_attention(const QueryKeyValue& parts, const ContextRegion& region,
                             const ContextCall& call);

// The three kinds. `ranks`: the positions of each rank.
at::Tensor ring_attention(const QueryKeyValue& parts, const comm::Communicator& group,
                          const std::vector<Positions>& ranks, const ContextCall& call);
at::Tensor ulysses_attention(const QueryKeyValue& parts, const comm::Communicator& group,
                             const std::vector<Positions>& ranks, const ContextCall& call);
at::Tensor gather_attention(const QueryKeyValue& parts, const comm::Communicator& group,
                            const std::vector<Positions>& ranks, const ContextCall& call);

}  // namespace trireme::nn
