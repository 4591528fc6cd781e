// The layer of attention: its projections, and which way of attention serves a call.
#include "trireme/core/error.h"
#include "trireme/nn/dropout.h"
#include "trireme/nn/layers.h"

namespace trireme::nn {

CausalAttentionImpl::CausalAttentionImpl(const Options& options) : options_(options) {
  core::check(options.heads > 0 && options.kv_heads > 0 && options.heads % options.kv_heads == 0 &&
                  (options.head > 0 || options.width % options.heads == 0),
              "attention: width {} must be a multiple of heads {}, and heads of kv_heads {}",
              options.width, options.heads, options.kv_heads);
  if (options_.head == 0) options_.head = options.width / options.heads;
  const int64_t head = options_.head, width = options.heads * head;
  const int64_t kv_width = options.kv_heads * head;
  // The query heads of one kv head stay together. If there are more ranks than kv heads, several
  // ranks hold copies of one.
  const Section q{
      .size = width, .copies = Section::kAsNeeded, .grain = width / options.kv_heads, .fine = head};
  const Section kv{.size = kv_width, .copies = Section::kAsNeeded, .grain = head};
  in_ =
      register_module(options.in_name, Linear(options.width, width + 2 * kv_width,
                                              LinearImpl::Options{.bias = options.in_bias,
                                                                  .deviation = options.in_deviation,
                                                                  .out_sections = {q, kv, kv}}));
  out_ = register_module(options.out_name,
                         Linear(width, options.width,
                                LinearImpl::Options{.bias = options.out_bias,
                                                    .deviation = options.out_deviation,
                                                    .in_sections = {q}}));
}

Flow CausalAttentionImpl::compute(const Flow& in) {
  const Flow qkv = in_->forward(in.first());
  std::vector<at::Tensor> tensors{attend(qkv)};
  if (in.tensors.size() > 1) tensors.push_back(in.tensors[1]);
  return out_->forward(Flow(std::move(tensors), qkv.where));
}

void CausalAttentionImpl::share_sequence(const ContextRegion& region, int64_t tensor_ranks) {
  core::check(options_.sees == Sees::Past,
              "attention to all positions cannot share a sequence among {} ranks: only causal "
              "attention can",
              region.group.size());
  // The rank with the fewest has the last of the kv heads, with their query heads.
  const int64_t fewest =
      tensor_ranks <= options_.kv_heads
          ? options_.kv_heads / tensor_ranks * (options_.heads / options_.kv_heads)
          : options_.heads / tensor_ranks;
  core::check(
      region.kind != ContextKind::Ulysses || fewest >= region.group.size(),
      "context.kind = \"ulysses\" deals heads to ranks: {} heads over tensor {} are {} on a "
      "rank, fewer than context {}; use \"ring\"",
      options_.heads, tensor_ranks, fewest, region.group.size());
  context_ = region;
}

/// Attention over the heads of this rank.
at::Tensor CausalAttentionImpl::attend(const Flow& qkv) const {
  const auto parts = in_->out_parts();
  const int64_t head = options_.head;
  const int64_t heads = parts[0].count / head, kv_heads = parts[1].count / head;
  const bool shares = context_ && context_->group.size() > 1;
  if (qkv.x().numel() == 0 && (!shares || qkv.x().size(0) == 0))
    return qkv.x().narrow(2, 0, parts[0].count);  // the fused kernel divides by the number of rows
  // The projection has all positions of the tensor axis, also where those between the layers are
  // cut, and the Flow says which they are.
  static const Where kNowhere;
  const Where& where = qkv.where != nullptr ? *qkv.where : kNowhere;
  const bool moves = where.moving.defined();
  core::check(!moves || cache_ != nullptr, "attention at a moving position needs a cache");
  core::check(cache_ == nullptr || !shares,
              "a model that is cut along context cannot write text; use mesh.context=1");
  std::optional<cuda::RotaryHeads> rotary;
  if (options_.rotary != nullptr)
    rotary = moves ? options_.rotary->heads_at(where.moving, cache_->capacity(), qkv.x(), heads,
                                               kv_heads)
                   : options_.rotary->heads(qkv.x(), where.positions, heads, kv_heads);
  const bool drops = options_.dropout > 0 && is_training();
  if (!drops && !shares && cache_ == nullptr && !where.documents.defined())
    return causal_attention(qkv.x(), heads, kv_heads, rotary ? &*rotary : nullptr, options_.sees);
  const bool turns = rotary && qkv.x().numel() > 0;
  const QueryKeyValue all = parts_of(turns ? turned(qkv.x(), *rotary) : qkv.x(), heads, kv_heads);
  // The cache keeps keys that are turned, and never turns them again.
  if (cache_ != nullptr)
    return moves ? cache_->attend_at(where.moving, all)
                 : cache_->attend(all, where.positions.first());
  const Positions mine = where.positions.of(qkv.x().size(1));
  DropoutOfWeights dropout;
  if (drops) dropout = dropout_of(qkv, mine.whole(), parts[0].begin / head);
  return (shares ? context_attention(all, *context_, {mine, where.documents, std::move(dropout)})
                 : attend_alone(all, {mine, where.documents, std::move(dropout)}))
      .transpose(1, 2)
      .reshape({qkv.x().size(0), qkv.x().size(1), -1});
}

/// Attention of a rank that has the whole sequence, with dropout or documents.
at::Tensor CausalAttentionImpl::attend_alone(const QueryKeyValue& all,
                                             const ContextCall& call) const {
  at::Tensor seen;
  if (options_.sees == Sees::Past || call.documents.defined())
    seen = visible(call.positions, call.positions, call.documents, all.q.device());
  if (!call.dropout) return masked_attention(all, seen);
  return plain_attention(all, seen,
                         call.dropout({0, all.q.size(1)}, call.positions, call.positions));
}

// The fused kernel cannot apply our mask, so with dropout the scores are computed in full. Of a
// sequence of T positions, head h owns the elements [h T T, (h + 1) T T): T rows of T keys.
DropoutOfWeights CausalAttentionImpl::dropout_of(const Flow& qkv, int64_t T,
                                                 int64_t first_head) const {
  return [this, where = qkv.where, rows = qkv.x().size(0), like = qkv.x().options(), T, first_head](
             Range heads, const Positions& queries, const Positions& keys) {
    const auto mask = [&](at::IntArrayRef shape, const DropoutElements& elements) {
      return dropout_mask(*this, where.get(), options_.dropout, shape, elements, like);
    };
    const int64_t first = first_head + heads.begin;
    if (queries.count() == T && keys.count() == T)
      return mask({rows, heads.count, T, T},
                  {.first_position = first, .width = T * T, .features = {0, T * T}});
    std::vector<at::Tensor> all;
    for (int64_t head = first; head < first + heads.count; ++head) {
      std::vector<at::Tensor> lines;
      for (const Range& some : queries.ranges()) {
        std::vector<at::Tensor> parts;
        for (const Range& one : keys.ranges())
          parts.push_back(
              mask({rows, some.count, one.count},
                   {.first_position = head * T + some.begin, .width = T, .features = one}));
        lines.push_back(at::cat(parts, 2));
      }
      all.push_back(at::cat(lines, 1));
    }
    return at::stack(all, 1);
  };
}

}  // namespace trireme::nn
