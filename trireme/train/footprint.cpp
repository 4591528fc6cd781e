#include "trireme/train/footprint.h"

#include <algorithm>
#include <map>

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

}  // namespace

Footprint footprint(const config::Config& config, nn::ModelImpl& whole, const Degrees& degrees) {
  const int64_t item = config.precision.compute == "float64" ? 8 : 4;
  const int64_t states = config.optim.kind == "adamw" ? 2 : config.optim.momentum != 0 ? 1 : 0;
  const auto parameters = nn::parameters_of(whole);
  const parallel::Units units = parallel::find_units(whole, parameters);
  const bool sharded = degrees.shard > 1;
  const bool shards_gradients = sharded && config.memory.shard != "optimizer";
  const bool shards_parameters = sharded && config.memory.shard == "parameters";

  Footprint all;
  int64_t local = 0, padded_local = 0, shard = 0;
  std::vector<int64_t> unit_bytes(units.units.size());
  std::map<std::vector<Axis>, std::vector<int64_t>> set_units;  // by what reduces them together
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Bytes bytes = bytes_of(parameters[i], degrees, item);
    local += bytes.local;
    padded_local += padded(bytes.local);
    shard += bytes.shard;
    unit_bytes[units.unit_of[i]] += padded(bytes.local);
    auto& of_set = set_units[parameters[i].layout.partial()];
    of_set.resize(units.units.size());
    of_set[units.unit_of[i]] += padded(bytes.local);
  }
  all.parameters = shards_parameters ? shard : sharded ? padded_local : local;
  all.optimizer = states * (sharded ? shard : padded_local);
  const bool alone = degrees.data() == 1;
  all.gradients = alone ? local : padded_local;
  if (shards_gradients) {
    all.gradients = shard;
    for (const auto& [axes, bytes] : set_units)
      all.gradients += *std::max_element(bytes.begin(), bytes.end()) *
                       static_cast<int64_t>(parallel::ScatteredBuckets::kBlocks);
  }
  if (shards_parameters) {
    // One block for each size of a unit, and two where neighbours are alike: the next is gathered
    // while one computes.
    std::map<int64_t, int64_t> blocks;
    for (std::size_t u = 0; u < unit_bytes.size(); ++u) {
      int64_t& count = blocks[unit_bytes[u]];
      count = std::max<int64_t>(count, u > 0 && unit_bytes[u] == unit_bytes[u - 1] ? 2 : 1);
    }
    for (const auto& [bytes, count] : blocks) all.gathered += bytes * count;
  }
  all.activations = whole.activation_bytes(batching(config, degrees, item));
  const int64_t state = (1 + states) * (sharded ? shard : local);
  all.copy = state / (sharded ? degrees.replica : degrees.data());
  return all;
}

}  // namespace trireme::train
