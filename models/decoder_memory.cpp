#include "models/decoder_memory.h"

namespace trireme::models {

namespace {

using Recompute = nn::Batching::Recompute;

/// The elements of tensors on one rank, for one micro-batch.
struct Sizes {
  int64_t all = 0, own = 0;  ///< tokens; of these, what the rank has between layers that are cut
  int64_t stream = 0, whole_stream = 0;  ///< the residual stream of own tokens, and of all
  int64_t qkv = 0, attended = 0;         ///< what attention takes and gives
  int64_t log_sums = 0;                  ///< one for each token and head
  int64_t square = 0;                    ///< the scores of attention, if it has dropout
  int64_t seen = 0;                      ///< a mask of which keys a query sees
  int64_t wide = 0;                      ///< what the mlp's last matrix takes
  int64_t before = 0;      ///< what the activation before it takes: one wide, or gate and up
  int64_t routed = 0;      ///< tokens at their experts, and what comes back
  int64_t statistics = 0;  ///< of the two norms of a block
  int64_t masks = 0;       ///< of dropout
  int64_t mlp_weight = 0, head_weight = 0, classes = 0;
  double layers = 0;  ///< of which activations are kept
};

Sizes sizes_of(const DecoderShape& shape, const nn::Batching& of) {
  const int64_t cut = of.tensor, hidden = shape.hidden, head = shape.head;
  const int64_t heads = (shape.heads + cut - 1) / cut, kv = (shape.kv_heads + cut - 1) / cut;
  const int64_t wide = (shape.ffn + cut - 1) / cut;
  Sizes sizes;
  sizes.all = of.rows * ((shape.seq + of.context - 1) / of.context);
  sizes.own = shape.sequence == nn::Sequence::Cut ? (sizes.all + cut - 1) / cut : sizes.all;
  sizes.stream = sizes.own * hidden;
  sizes.whole_stream = sizes.all * hidden;
  // Gathered, every rank has all keys and values, and says which of them its queries see.
  const bool gathers = of.context > 1 && shape.context == nn::ContextKind::Gather;
  const bool rings = of.context > 1 && shape.context == nn::ContextKind::Ring;
  const int64_t keys = gathers ? of.rows * shape.seq : sizes.all;
  sizes.qkv = (sizes.all * heads + keys * 2 * kv) * head;
  if (gathers)
    sizes.seen = (of.documents ? sizes.all : sizes.all / of.rows) * shape.seq;
  else if (of.documents && !rings)
    sizes.seen = of.rows * shape.seq * shape.seq;
  sizes.attended = sizes.all * heads * head;
  sizes.log_sums = sizes.all * heads;
  sizes.square = shape.attention_dropout > 0 ? sizes.log_sums * shape.seq : 0;
  sizes.wide = sizes.all * wide;
  sizes.before = (shape.gated ? 2 : 1) * sizes.wide;
  sizes.statistics = (shape.gated ? 2 : 4) * sizes.own;
  sizes.masks = shape.dropout > 0 ? 2 * sizes.stream : 0;
  sizes.routed = 2 * shape.top_k * sizes.whole_stream;
  sizes.mlp_weight = wide * hidden;
  if (shape.top_k > 0) sizes.mlp_weight = sizes.mlp_weight / shape.top_k * shape.experts;
  sizes.classes = (shape.vocab + cut - 1) / cut;
  sizes.head_weight = sizes.classes * hidden;
  sizes.layers = of.layers < 0 ? static_cast<double>(shape.layers) : of.layers;
  return sizes;
}

int64_t times(double layers, int64_t bytes) {
  return static_cast<int64_t>(layers * static_cast<double>(bytes));
}

/// What a block keeps for backward, and what backward then makes again at a time.
struct Kept {
  int64_t kept = 0, again = 0;
};

Kept kept_of(Recompute recompute, int64_t block, int64_t stream, int64_t attention,
             const Kept& cheap) {
  if (recompute == Recompute::Block) return {stream, block - stream};
  if (recompute == Recompute::Selective) return {block - attention, attention};
  return recompute == Recompute::Cheap ? cheap : Kept{block, 0};
}

/// On a GPU in 16 bits. Its kernels are fused, so that only statistics and sums are float32.
int64_t bytes_on_gpu(const DecoderShape& shape, const nn::Batching& of, const Sizes& sizes) {
  const int64_t item = of.item_bytes;
  const bool is_cut = of.tensor > 1, has_dropout = shape.dropout > 0;
  // A block: input and output of two norms, q, k and v, what attention gives, input and output of
  // GELU or SwiGLU. In float32: statistics of the rows of norms, and of attention.
  const int64_t attention =
      (sizes.qkv + sizes.attended + 4 * sizes.square + sizes.seen) * item + 4 * sizes.log_sums;
  const int64_t block =
      (4 * sizes.stream + sizes.before + sizes.wide + sizes.routed + sizes.masks) * item +
      attention + 4 * sizes.statistics;
  const int64_t cheap = block - (2 * sizes.stream + sizes.wide) * item;
  const Kept one = kept_of(of.recompute, block, sizes.stream * item, attention, {cheap, 0});

  // The head: input and output of the last norm, the gradient of the latter, the logits of a chunk,
  // which become their gradients in place, and the gradient of the weight. (If the classes are cut,
  // softmax is not fused: it is in float32, and what is added up is there beside the sum.)
  constexpr int64_t kWorkspace = int64_t{32} << 20;  // of cuBLASLt, for its largest products
  const int64_t chunk =
      nn::even_chunk(sizes.all, nn::loss_chunks(of.device, shape.vocab, of.tensor, item).rows);
  const bool adds_up = chunk < sizes.all;
  const int64_t of_head = (2 * sizes.stream + sizes.whole_stream * (is_cut ? 2 : 1)) * item +
                          sizes.head_weight * (!adds_up ? item
                                               : is_cut ? 4 + item
                                                        : 4);
  const int64_t logits = chunk * sizes.classes * (is_cut ? item + 4 : item);
  const int64_t in_head = of.heads > 0 ? of_head + logits + kWorkspace : 0;
  const int64_t kept = times(sizes.layers, one.kept) + times(std::max(0.0, of.heads - 1), of_head);

  // The backward of the last block: the gradients of the stream, of what the mlp's last matrix
  // takes (with dropout twice), of that matrix, and of a tied table, which waits for the
  // embedding's part. (That of gate and up comes when the output of SwiGLU is gone.)
  const int64_t tied = shape.tie && of.layers < 0 ? sizes.head_weight : 0;
  const int64_t in_block =
      one.again + (sizes.stream + (is_cut ? sizes.whole_stream : 0) +
                   sizes.wide * (has_dropout ? 2 : 1) + sizes.mlp_weight + tied) *
                      item;
  const int64_t in_table = of.layers < 0 ? (3 * sizes.head_weight + 2 * sizes.stream) * item : 0;
  return std::max(kept + std::max(in_head, in_block), in_table);
}

/// On the CPU, and on a GPU in float32 or float64.
int64_t bytes_elsewhere(const DecoderShape& shape, const nn::Batching& of, const Sizes& sizes) {
  // On the CPU layer norms of 16 bits save their inputs in float32.
  const int64_t item = of.item_bytes;
  const bool half = item < 4, on_cpu = of.device == c10::DeviceType::CPU;
  const int64_t norm_extra = half && on_cpu && !shape.gated ? sizes.stream * (4 - item) : 0;

  // What a block saves for backward: the inputs of its norms and matrices, q, k and v, the log-sum-
  // exp (or the scores) of attention, the input and the output of GELU or SwiGLU.
  const int64_t scores = shape.attention_dropout > 0 ? 4 * sizes.square : sizes.log_sums;
  const int64_t attention = sizes.qkv + sizes.attended + scores + sizes.seen;
  const int64_t block = 4 * sizes.stream + sizes.statistics + attention + sizes.before +
                        sizes.wide + sizes.routed + sizes.masks;
  // Cheaply, that output is gone; while its gradient becomes that of the input, both are there.
  const Kept one = kept_of(of.recompute, block, sizes.stream, attention,
                           {block - 2 * sizes.stream - sizes.wide, sizes.wide});
  // In the head: the input and the output of the last norm, the gradients that are computed with
  // the loss, and the logits of one chunk of rows.
  const int64_t most = nn::loss_chunks(of.device, shape.vocab, of.tensor, item).rows;
  const int64_t chunk = on_cpu ? std::min(sizes.all, most) : nn::even_chunk(sizes.all, most);
  const int64_t entered = of.tensor > 1 ? sizes.whole_stream : 0;
  const int64_t of_head = 2 * sizes.stream + entered + sizes.whole_stream + sizes.head_weight;
  const int64_t in_head = of.heads > 0 ? of_head + chunk * (sizes.classes + 2 * shape.hidden) : 0;
  const int64_t kept = times(sizes.layers, one.kept) + times(std::max(0.0, of.heads - 1), of_head);
  // In the backward of the last block: the gradients of the residual stream, of GELU's output, of
  // the matrix before it, and of a tied table, which stays until the embedding adds its part.
  const int64_t in_block = one.again + 2 * sizes.whole_stream + sizes.wide + sizes.mlp_weight +
                           (shape.tie && of.layers < 0 ? sizes.head_weight : 0);
  if (!half) return (kept + std::max(in_head, in_block)) * item;

  // In 16 bits there are float32 tensors, too. Of the norms: their inputs. Of the head: the logits,
  // and the gradient of its weight if that is added up over chunks, with what is added. Of a block:
  // a gradient while it is added. Of the embedding: the gradients of its rows.
  const double norms = of.recompute == Recompute::Block ? 2 : 2 * sizes.layers;
  const int64_t added_up = chunk < sizes.all ? sizes.head_weight * 8 : 0;
  const int64_t head_bytes =
      in_head * item + (of.heads > 0 ? chunk * sizes.classes * 4 + added_up : 0);
  const int64_t matrix_bytes = in_block * item + (of.accumulates ? 4 * sizes.mlp_weight : 0);
  // SwiGLU's backward, when its output is gone: its input, its gradient and that of the input are
  // there in both.
  const int64_t gate_bytes = (in_block - sizes.mlp_weight - sizes.wide) * item + sizes.wide * 4 +
                             (sizes.before * 2) * 4 + sizes.before * item;
  const int64_t block_bytes = shape.gated ? std::max(matrix_bytes, gate_bytes) : matrix_bytes;
  const int64_t table_bytes =
      sizes.head_weight * (4 + item + (shape.tie ? item : 0)) + sizes.stream * (4 + item);
  return std::max(kept * item + times(norms, norm_extra) + std::max(head_bytes, block_bytes),
                  of.layers < 0 ? table_bytes : 0);
}

}  // namespace

int64_t decoder_activation_bytes(const DecoderShape& shape, const nn::Batching& of) {
  const Sizes sizes = sizes_of(shape, of);
  const bool fused = of.device != c10::DeviceType::CPU && of.item_bytes < 4;
  return fused ? bytes_on_gpu(shape, of, sizes) : bytes_elsewhere(shape, of, sizes);
}

}  // namespace trireme::models
