#include "trireme/train/footprint.h"

#include <algorithm>
#include <map>

#include "trireme/parallel/block_pool.h"
#include "trireme/parallel/byte_block.h"
#include "trireme/parallel/scattered_buckets.h"
#include "trireme/parallel/units.h"

namespace trireme::train {

namespace {

using parallel::padded;

nn::Batching batching(const config::Config& config, const Degrees& degrees, int64_t item) {
  using Recompute = nn::Batching::Recompute;
  const int64_t ranks = degrees.replica * degrees.shard;
  const int64_t block = (config.batch.global + ranks - 1) / ranks;
  return {.rows = std::min(config.batch.micro, block),
          .item_bytes = item,
          .tensor = degrees.tensor,
          .recompute = config.memory.recompute == "block"       ? Recompute::Block
                       : config.memory.recompute == "selective" ? Recompute::Selective
                                                                : Recompute::None};
}

/// What the first rank keeps of a parameter.
struct Bytes {
  int64_t local = 0, shard = 0;
};

Bytes bytes_of(const nn::Parameter& one, const Degrees& degrees, int64_t item) {
  Bytes bytes;
  const auto cut = parallel::shard(one, {}, degrees);
  bytes.local = cut.numel * item;
  for (const auto& box : cut.boxes) bytes.shard += padded(box.piece.count * item);
  return bytes;
}

/// The blocks that forward and backward use in turn, one unit ahead, on a device that has no
/// memory.
int64_t gathered_at_most(const std::vector<int64_t>& unit_bytes) {
  parallel::BlockPool pool(2, at::TensorOptions().dtype(at::kByte).device(at::kMeta));
  std::vector<int64_t> order = unit_bytes;
  order.insert(order.end(), unit_bytes.rbegin(), unit_bytes.rend());
  int64_t most = 0;
  at::Tensor now;
  for (const int64_t bytes : order) {
    at::Tensor next = pool.take(bytes);
    most = std::max(most, pool.bytes());
    if (now.defined()) pool.give(std::move(now));
    now = std::move(next);
  }
  return most;
}

}  // namespace

Footprint footprint(const config::Config& config, nn::ModelImpl& whole, const Degrees& degrees) {
  const int64_t item = config.precision.compute == "float64" ? 8 : 4;
  const int64_t states = config.optim.kind == "adamw" ? 2 : config.optim.momentum != 0 ? 1 : 0;
  const bool sharded = degrees.shard > 1;
  const auto parameters = nn::parameters_of(whole);
  const parallel::Units units =
      sharded ? parallel::find_units(whole, parameters) : parallel::Units{};
  const bool shards_gradients = sharded && config.memory.shard != "optimizer";
  const bool shards_parameters = sharded && config.memory.shard == "parameters";

  Footprint all;
  Bytes sum, trained;
  int64_t padded_sum = 0, padded_trained = 0;
  std::vector<int64_t> unit_bytes(units.units.size());
  std::map<std::vector<Axis>, std::vector<int64_t>> set_units;  // by what reduces them together
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Bytes bytes = bytes_of(parameters[i], degrees, item);
    sum.local += bytes.local;
    sum.shard += bytes.shard;
    padded_sum += padded(bytes.local);
    if (sharded) unit_bytes[units.unit_of[i]] += padded(bytes.local);
    if (!parameters[i].tensor.requires_grad()) continue;
    trained.local += bytes.local;
    trained.shard += bytes.shard;
    padded_trained += padded(bytes.local);
    if (!sharded) continue;
    auto& of_set = set_units[parameters[i].layout.partial()];
    of_set.resize(units.units.size());
    of_set[units.unit_of[i]] += padded(bytes.local);
  }
  all.parameters = shards_parameters ? sum.shard : sharded ? padded_sum : sum.local;
  all.optimizer = states * (sharded ? trained.shard : padded_trained);
  all.gradients = degrees.data() == 1 ? trained.local : padded_trained;
  if (shards_gradients) {
    all.gradients = trained.shard;
    for (const auto& [axes, bytes] : set_units)
      all.gradients += *std::max_element(bytes.begin(), bytes.end()) *
                       static_cast<int64_t>(parallel::ScatteredBuckets::kBlocks);
  }
  if (shards_parameters) all.gathered = gathered_at_most(unit_bytes);
  all.activations = whole.activation_bytes(batching(config, degrees, item));
  const int64_t state =
      sharded ? sum.shard + states * trained.shard : sum.local + states * trained.local;
  all.copy = state / (sharded ? degrees.replica : degrees.data());
  return all;
}

}  // namespace trireme::train
