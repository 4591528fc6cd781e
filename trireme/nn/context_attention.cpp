#include "trireme/nn/context_attention.h"

#include "trireme/core/error.h"

namespace trireme::nn {

at::Tensor context_attention(const QueryKeyValue& parts, const ContextRegion& region,
                             const ContextCall& call) {
  const comm::Communicator& group = region.group;
  core::check(!call.positions.is_open(),
              "attention over a sequence that {} ranks share must know which positions this rank "
              "has: give Where::positions = head_and_tail(positions of the sequence, {}, {})",
              group.size(), group.size(), group.rank());
  std::vector<Positions> ranks;
  for (int rank = 0; rank < group.size(); ++rank)
    ranks.push_back(head_and_tail(call.positions.whole(), group.size(), rank));
  const Positions& mine = ranks[static_cast<std::size_t>(group.rank())];
  core::check(mine == call.positions && mine.count() == parts.q.size(2),
              "rank {} of {} along context has {} positions ({}), but should have {}", group.rank(),
              group.size(), parts.q.size(2), to_string(call.positions), to_string(mine));
  switch (region.kind) {
    case ContextKind::Ring: return ring_attention(parts, group, ranks, call);
    case ContextKind::Ulysses: return ulysses_attention(parts, group, ranks, call);
    case ContextKind::Gather: return gather_attention(parts, group, ranks, call);
  }
  return {};  // unreachable
}

}  // namespace trireme::nn
