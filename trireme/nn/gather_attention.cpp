// Attention to keys and values that every rank gathers: the simple way. It keeps those of the whole
// sequence, but no rank waits for another in between.
#include <torch/autograd.h>

#include "trireme/nn/context_attention.h"
#include "trireme/nn/context_collectives.h"

namespace trireme::nn {

at::Tensor gather_attention(const QueryKeyValue& parts, const comm::Communicator& group,
                            const std::vector<Positions>& ranks, const ContextCall& call) {
  const auto& [q, k, v] = parts;
  const int64_t whole = call.positions.whole();
  // [T, 2, B, K, D]: the dim that is gathered comes first.
  const at::Tensor mine = at::stack({k, v}).permute({3, 0, 1, 2, 4}).contiguous();
  const at::Tensor all = gather_rows(mine, group, counts_of(ranks))
                             .index_select(0, in_order(ranks, mine.device()))
                             .permute({1, 2, 3, 0, 4});
  if (q.size(2) == 0) return q + 0 * all.sum();  // its backward meets that of the other ranks
  const QueryKeyValue placed{q, all[0], all[1]};
  const Positions keys({{0, whole}}, whole);
  const at::Tensor seen = visible(call.positions, keys, call.documents, q.device());
  if (!call.dropout) return masked_attention(placed, seen);
  return plain_attention(placed, seen, call.dropout({0, q.size(1)}, call.positions, keys));
}

}  // namespace trireme::nn
