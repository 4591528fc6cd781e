#include "trireme/train/compression_bytes.h"

#include <algorithm>

#include "trireme/comm/dtype.h"
#include "trireme/parallel/parameter_shard.h"
#include "trireme/train/attach.h"

namespace trireme::train {

namespace {

using parallel::Compression;

/// The bytes of an encoded gradient by its own bytes, at most.
double encoded_part(const parallel::CompressOptions& options, int64_t item_bytes) {
  const auto item = static_cast<double>(item_bytes);
  switch (options.kind) {
    case Compression::Int8: return 1.1 / item;
    case Compression::OneBit: return 0.2 / item;
    case Compression::TopK: return options.ratio * (4 + item) / item;
    case Compression::RandomK: return options.ratio;
    default: return 2 / item;  // fp16, bf16 and what auto may choose
  }
}

/// Of one box: the elements that PowerSGD keeps in Q, or 0 if it leaves the box alone.
int64_t factor_elems(const Box& box, const parallel::CompressOptions& options) {
  if (box.shape.size() < 2 || box.numel() == 0) return 0;
  const int64_t rows = box.shape.front(), columns = box.numel() / rows;
  const int64_t rank = std::min({options.rank, rows, columns});
  const auto factors = static_cast<double>(rank * (rows + columns));
  return options.min_saving * factors < static_cast<double>(rows * columns) ? columns * rank : 0;
}

}  // namespace

CompressionBytes compression_bytes(const config::Config& config,
                                   const std::vector<nn::Parameter>& parameters,
                                   const Degrees& degrees, const Policy& policy,
                                   int64_t block_bytes) {
  const parallel::CompressOptions options = compress_of(config);
  CompressionBytes all;
  int64_t gradients = 0;
  if (!options.compresses()) return all;
  for (const nn::Parameter& one : parameters) {
    const bool kept = std::ranges::any_of(
        options.keep, [&](const std::string& pattern) { return matches_name(pattern, one.name); });
    if (kept || !one.tensor.requires_grad()) continue;
    const auto cut = parallel::shard(one, {}, degrees, policy);
    const auto item =
        static_cast<int64_t>(c10::elementSize(comm::scalar_type_of(cut.dtypes.gradient())));
    for (const parallel::ShardedBox& box : cut.boxes) {
      const bool sums_shards = position_in(box.reduction.sums.shards, {}, degrees).count > 1;
      const bool sums_rest = position_in(box.reduction.sums.rest, {}, degrees).count > 1;
      if ((!sums_shards && !sums_rest) || box.reduction.repeats) continue;
      int64_t elems = box.numel();
      if (options.kind == Compression::PowerSgd) {
        const int64_t factor = factor_elems(box.local().box, options);
        if (factor == 0) continue;
        all.kept += 2 * factor * item;
        all.saved += factor * item;
        gradients += elems * item;
      } else if (sums_shards && sums_rest) {
        elems += box.piece.count;  // the shards have residuals of their own
      }
      if (options.feedback) {
        all.kept += 2 * elems * item;
        all.saved += elems * item;
      }
      if (options.kind == Compression::PowerSgd) continue;
      gradients += elems * item;
      all.travelling +=
          static_cast<int64_t>(2 * encoded_part(options, item) * static_cast<double>(elems * item));
    }
  }
  // While a block is encoded there are copies of its gradients and of its residuals.
  all.travelling += std::min(block_bytes, gradients) * (options.feedback ? 2 : 1);
  return all;
}

}  // namespace trireme::train
