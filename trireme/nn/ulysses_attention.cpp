// DeepSpeed-Ulysses (Jacobs et al. 2023): before attention, an all-to-all gives each rank all
// positions of some heads; after it, another one gives each rank all heads of its own positions.
//
//   rank 0   heads 0 1 2 3 of positions a      ->   heads 0 1 of positions a b      ->   as before
//   rank 1   heads 0 1 2 3 of positions b           heads 2 3 of positions a b
//
// With fewer kv heads than ranks, several ranks get the kv head that their heads share.
#include "trireme/core/error.h"
#include "trireme/nn/context_attention.h"
#include "trireme/nn/context_collectives.h"

namespace trireme::nn {

namespace {

/// The heads that a rank computes, and the kv heads that these need.
struct HeadShare {
  Range heads, kv_heads;
};

HeadShare share_of(const QueryKeyValue& parts, int size, int rank) {
  const int64_t group = parts.q.size(1) / parts.k.size(1);
  const Range heads = even_range(parts.q.size(1), size, rank);
  const int64_t first = heads.begin / group, last = (heads.begin + heads.count - 1) / group;
  return {heads, {first, last - first + 1}};
}

at::Tensor heads_of(const at::Tensor& x, Range heads) {
  return x.narrow(1, heads.begin, heads.count).reshape({-1});
}

/// [B, heads, all positions in their order, D] from what the ranks sent, which begins at `at` in
/// the message of each.
at::Tensor put_together(const std::vector<at::Tensor>& messages, std::vector<int64_t>& at,
                        const std::vector<Positions>& ranks, std::vector<int64_t> shape) {
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    shape[2] = ranks[i].count();
    const int64_t count = shape[0] * shape[1] * shape[2] * shape[3];
    parts.push_back(messages[i].narrow(0, std::exchange(at[i], at[i] + count), count).view(shape));
  }
  return at::cat(parts, 2).index_select(2, in_order(ranks, messages.front().device()));
}

/// The kv head of each head of a share.
at::Tensor for_each_head(const at::Tensor& kv, const HeadShare& share, int64_t group) {
  std::vector<int64_t> of;
  for (int64_t head = 0; head < share.heads.count; ++head)
    of.push_back((share.heads.begin + head) / group - share.kv_heads.begin);
  return kv.index_select(1, at::tensor(of, at::kLong).to(kv.device()));
}

at::Tensor documents_of_all(const at::Tensor& mine, const comm::Communicator& group,
                            const std::vector<Positions>& ranks) {
  const at::NoGradGuard no_gradients;
  return gather_rows(mine.t().contiguous(), group, counts_of(ranks))
      .index_select(0, in_order(ranks, mine.device()))
      .t();
}

}  // namespace

at::Tensor ulysses_attention(const QueryKeyValue& parts, const comm::Communicator& group,
                             const std::vector<Positions>& ranks, const ContextCall& call) {
  const auto& [q, k, v] = parts;
  const int64_t B = q.size(0), D = q.size(3), whole = call.positions.whole();
  const int64_t per_kv_head = q.size(1) / k.size(1);
  core::check(q.size(1) >= group.size(),
              "context.kind = \"ulysses\" deals {} heads to {} ranks: use \"ring\", or as many "
              "heads as ranks",
              q.size(1), group.size());
  const HeadShare mine = share_of(parts, group.size(), group.rank());
  const auto elements = [&](const HeadShare& share, int64_t positions) {
    return B * positions * D * (share.heads.count + 2 * share.kv_heads.count);
  };
  std::vector<at::Tensor> out;
  comm::Rows to, from, back;
  for (int rank = 0; rank < group.size(); ++rank) {
    const HeadShare share = share_of(parts, group.size(), rank);
    for (const at::Tensor& one :
         {heads_of(q, share.heads), heads_of(k, share.kv_heads), heads_of(v, share.kv_heads)})
      out.push_back(one);
    to.push_back(elements(share, q.size(2)));
    from.push_back(elements(mine, ranks[static_cast<std::size_t>(rank)].count()));
    back.push_back(B * share.heads.count * q.size(2) * D);
  }
  const auto messages = exchange(at::cat(out), group, to, from).split_with_sizes(from);
  std::vector<int64_t> at(messages.size(), 0);
  const at::Tensor my_q = put_together(messages, at, ranks, {B, mine.heads.count, 0, D});
  const at::Tensor my_k = put_together(messages, at, ranks, {B, mine.kv_heads.count, 0, D});
  const at::Tensor my_v = put_together(messages, at, ranks, {B, mine.kv_heads.count, 0, D});
  const QueryKeyValue own{my_q, for_each_head(my_k, mine, per_kv_head),
                          for_each_head(my_v, mine, per_kv_head)};
  const Positions everything({{0, whole}}, whole);
  at::Tensor seen;
  if (call.dropout || call.documents.defined())
    seen = visible(
        everything, everything,
        call.documents.defined() ? documents_of_all(call.documents, group, ranks) : at::Tensor(),
        q.device());
  const at::Tensor y =
      call.dropout ? plain_attention(own, seen, call.dropout(mine.heads, everything, everything))
      : seen.defined()
          ? masked_attention(own, seen)
          : at::scaled_dot_product_attention(own.q, own.k, own.v, {}, 0.0, /*is_causal=*/true);
  // Back: to each rank its positions, from each its heads.
  std::vector<at::Tensor> results;
  comm::Rows sent;
  for (const Positions& one : ranks) {
    results.push_back(
        y.index_select(2, at::tensor(one.each(), at::kLong).to(y.device())).reshape({-1}));
    sent.push_back(results.back().numel());
  }
  std::vector<at::Tensor> heads;
  for (const at::Tensor& one :
       exchange(at::cat(results), group, sent, back).split_with_sizes(back)) {
    const int rank = static_cast<int>(heads.size());
    heads.push_back(one.view({B, share_of(parts, group.size(), rank).heads.count, q.size(2), D}));
  }
  return at::cat(heads, 1);
}

}  // namespace trireme::nn
