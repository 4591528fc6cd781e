#include "trireme/train/footprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "trireme/comm/dtype.h"
#include "trireme/core/units.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/block_pool.h"
#include "trireme/parallel/byte_block.h"
#include "trireme/parallel/unit_buckets.h"
#include "trireme/parallel/units.h"
#include "trireme/pipeline/passes.h"
#include "trireme/train/attach.h"
#include "trireme/train/compression_bytes.h"
#include "trireme/train/local_training.h"
#include "trireme/train/recomputation.h"
#include "trireme/train/stages.h"

namespace trireme::train {

namespace {

using parallel::padded;

nn::Batching batching(const config::Config& config, const Degrees& degrees, int64_t item,
                      c10::DeviceType device) {
  const int64_t block = even_range(config.batch.global, degrees.samples(), 0).count;
  return {.rows = std::min(config.batch.micro, block),
          .accumulates = block > config.batch.micro,
          .item_bytes = item,
          .tensor = degrees.tensor,
          .context = degrees.context,
          .documents = config.data.documents,
          .device = device};
}

int64_t item_bytes(core::DType dtype) {
  return static_cast<int64_t>(c10::elementSize(comm::scalar_type_of(dtype)));
}

/// A kind of state of a parameter on the first rank, in bytes: all of the rank's own part, the same
/// padded, and its shard.
struct StateBytes {
  int64_t local = 0, padded_local = 0, shard = 0;

  void operator+=(const StateBytes& other) {
    local += other.local;
    padded_local += other.padded_local;
    shard += other.shard;
  }
};

/// The state of a parameter on the first rank.
struct ParameterBytes {
  StateBytes weight, master, gradient, state;  ///< `master`: 0 if it is the weight itself
  StateBytes saved;                            ///< of the parameter in a checkpoint
  bool rounds_at_random = false;               ///< it has no master
  RankSet same = {};                           ///< the ranks that keep the same
};

/// The ranks that sum gradients: all, or those of one replica that trains on its own.
Degrees in_lockstep(const config::Config& config, Degrees all_ranks) {
  if (is_local(config)) all_ranks.replica = static_cast<int>(config.sync.inner_group);
  return all_ranks;
}

int ranks_in(const RankSet& set, const Degrees& degrees) {
  return position_in(set, {}, degrees).count;
}

ParameterBytes bytes_of(const nn::Parameter& one, const Degrees& degrees, const Policy& policy) {
  const auto cut = parallel::shard(one, {}, degrees, policy);
  const auto bytes = [&](core::DType dtype) {
    const int64_t item = item_bytes(dtype);
    StateBytes all{cut.numel * item, padded(cut.numel * item), 0};
    for (const auto& box : cut.boxes) all.shard += padded(box.piece.count * item);
    return all;
  };
  const ParameterDtypes& dtypes = cut.dtypes;
  ParameterBytes all{
      .weight = bytes(dtypes.compute),
      .master = dtypes.master != dtypes.compute ? bytes(dtypes.master) : StateBytes{},
      .gradient = bytes(dtypes.gradient()),
      .state = bytes(is_half(dtypes.master) ? core::DType::Float32 : dtypes.master),
      .saved = bytes(dtypes.master),
      .rounds_at_random = is_half(dtypes.master)};
  for (const auto& box : cut.boxes) all.same = box.reduction.same;
  return all;
}

/// The bytes of the blocks in which units are gathered: runs forward and backward, one unit ahead,
/// on a device without memory.
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

/// What is gathered at a time: a layer's experts come with its other weights.
std::vector<int64_t> bytes_of_layers(const parallel::Units& units,
                                     const std::vector<int64_t>& unit_bytes) {
  std::vector<int64_t> layers;
  for (std::size_t unit = 0; unit < unit_bytes.size(); ++unit) {
    if (units.units[unit].experts && !layers.empty())
      layers.back() += unit_bytes[unit];
    else
      layers.push_back(unit_bytes[unit]);
  }
  return layers;
}

constexpr int64_t kUnitsInFlight = 2;
static_assert(kUnitsInFlight == parallel::ReducedBuckets::kMostCopies);

/// Gradients that travel in another dtype exist twice while they are in flight: two buckets, or two
/// units with what comes back. `set_units`: the bytes of each unit, by the ranks that sum it.
int64_t travelling_bytes(const config::Config& config, const Degrees& degrees, const Policy& policy,
                         const StateBytes& gradients,
                         const std::map<GradientSums, std::vector<int64_t>>& set_units) {
  const ParameterDtypes& dtypes = *policy.precision.dtypes;
  if (dtypes.reduce == dtypes.gradient() || degrees.data() == 1) return 0;
  int64_t most = 0;
  for (const auto& [sums, units] : set_units)
    for (const int64_t bytes : units)
      most = std::max(most, bytes + bytes / ranks_in(sums.shards, degrees));
  if (policy.sharding == Sharding::None)
    most = std::min(gradients.padded_local / 2,
                    static_cast<int64_t>(config.comm.bucket_mib * (1 << 20)));
  return kUnitsInFlight * most * item_bytes(dtypes.reduce) / item_bytes(dtypes.gradient());
}

/// Does the optimizer read gradients in the dtype of the weights? One GPU has nothing to sum them
/// with; elsewhere they are added up in float32.
bool gradients_stay_narrow(const Degrees& degrees, const nn::Batching& batching) {
  return batching.device == c10::DeviceType::CUDA && degrees.world() == 1 && !batching.accumulates;
}

/// The part of the model that one rank has.
struct RankShare {
  std::vector<nn::Parameter> parameters;
  nn::Batching batching;
  bool shares_weights = false;  ///< several of its stages use one weight
  int versions = 1;             ///< of its weights, in an asynchronous pipeline
  InFlight in_flight = {};
};

Footprint footprint_of(const config::Config& config, nn::ModelImpl& whole, const Degrees& all_ranks,
                       const RankShare& own) {
  const Degrees degrees = in_lockstep(config, all_ranks);
  const int64_t states = config.optim.kind == config::OptimizerKind::AdamW ? 2
                         : config.optim.momentum != 0                      ? 1
                                                                           : 0;
  const Policy policy = policy_of(config, degrees);
  const bool sharded = policy.sharding != Sharding::None;
  // As Pipeline: stages of one rank that share a weight are held for a step in any case.
  const bool holds =
      sharded && degrees.pipe > 1 && (config.pipeline.keep_gathered || own.shares_weights);
  const auto all_parameters = nn::parameters_of(whole);
  const parallel::Units units =
      sharded ? parallel::find_units(whole, all_parameters, degrees) : parallel::Units{};
  std::map<std::string, std::size_t> unit_of;
  for (std::size_t i = 0; i < units.unit_of.size(); ++i)
    unit_of[all_parameters[i].name] = units.unit_of[i];
  const bool shards_gradients = policy.sharding >= Sharding::Gradients && !holds;
  const bool shards_parameters = policy.sharding == Sharding::Parameters;
  // Weights that stay whole are decoded over the shards, which the masters must survive.
  const bool decodes_in_place =
      sharded && !shards_parameters && config.compress.gathers != config::Narrow::None;

  const bool local = is_local(config);
  const bool remembers = local && config.sync.kind != config::SyncKind::Average &&
                         config.sync.kind != config::SyncKind::PostLocal;
  const int64_t commons = !local ? 0 : remembers ? 2 : 1;  // tensors that all replicas have alike

  Footprint all;
  StateBytes weights, trained, masters, gradients, state;
  int64_t updating = 0;  // while the largest parameter is updated
  std::vector<int64_t> unit_bytes(units.units.size());
  std::map<GradientSums, std::vector<int64_t>>
      set_units;  // by the ranks over which gradients are summed
  for (const nn::Parameter& one : own.parameters) {
    const ParameterBytes bytes = bytes_of(one, degrees, policy);
    weights += bytes.weight;
    masters += bytes.master;
    if (decodes_in_place && bytes.master.local == 0) masters += bytes.saved;
    const bool is_trained = one.tensor.requires_grad();
    const auto kept = [&](const StateBytes& of) { return sharded ? of.shard : of.local; };
    if (is_trained || config.lora.rank == 0)  // a checkpoint of adapters has nothing else
      all.copy += (kept(bytes.saved) + (is_trained ? states * kept(bytes.state) : 0)) /
                  ranks_in(local ? writers_of_own(bytes.same) : bytes.same, degrees);
    if (local && is_trained)
      all.copy += commons * kept(bytes.state) / ranks_in(writers_of_common(bytes.same), all_ranks);
    if (sharded) unit_bytes[unit_of[one.name]] += bytes.weight.padded_local;
    if (!is_trained) continue;
    trained += bytes.weight;
    gradients += bytes.gradient;
    state += bytes.state;
    if (bytes.rounds_at_random)
      updating = std::max(updating, optim::bytes_to_round(kept(bytes.saved) / 2));
    if (!sharded) continue;
    auto& of_set = set_units[gradient_sums_of(one.layout, degrees, policy)];
    of_set.resize(units.units.size());
    of_set[unit_of[one.name]] += bytes.gradient.padded_local;
  }
  const int64_t weight_bytes = shards_parameters ? weights.shard
                               : sharded         ? weights.padded_local
                                                 : weights.local;
  const int64_t master_bytes = sharded ? masters.shard : masters.local;
  all.parameters = weight_bytes + master_bytes;
  all.masters = master_bytes;
  all.versions = (own.versions - 1) * trained.local;
  all.copy += all.versions / std::max(1, degrees.replica);  // the replicas share the writing
  all.optimizer = states * (sharded ? state.shard : state.padded_local);
  if (local) all.meetings = (commons + 1) * (sharded ? state.shard : state.local);
  all.gradients = gradients_stay_narrow(degrees, own.batching) ? trained.local
                  : degrees.data() == 1                        ? gradients.local
                                                               : gradients.padded_local;
  if (shards_gradients) {
    all.gradients = gradients.shard;
    for (const auto& [sums, bytes] : set_units)
      all.gradients += *std::max_element(bytes.begin(), bytes.end()) *
                       static_cast<int64_t>(parallel::ScatteredBuckets::kBlocks);
  }
  if (shards_parameters)
    all.gathered =
        holds ? weights.padded_local : gathered_at_most(bytes_of_layers(units, unit_bytes));
  const int64_t travelling = travelling_bytes(config, degrees, policy, gradients, set_units);
  if (shards_gradients) all.gradients += travelling / kUnitsInFlight;  // in every micro-batch, one
  auto block_bytes = static_cast<int64_t>(config.comm.bucket_mib * (1 << 20));
  if (sharded) block_bytes = 0;
  for (const auto& [sums, bytes] : set_units)
    block_bytes = std::max(block_bytes, *std::max_element(bytes.begin(), bytes.end()));
  const CompressionBytes compressed =
      compression_bytes(config, own.parameters, degrees, policy, block_bytes);
  all.residuals = compressed.kept;
  if (shards_gradients) all.gradients += compressed.travelling;
  all.copy += compressed.saved;
  // Otherwise the last gradients travel, and updates are made, when most activations are gone.
  all.activations = std::max({activation_bytes(config, whole, own.batching, own.in_flight),
                              updating, shards_gradients ? 0 : travelling + compressed.travelling});
  return all;
}

/// The part that a rank of the pipe has, if the stages have `cut` places of the chain each.
RankShare share_of(nn::ModelImpl& whole, const pipeline::Schedule& schedule,
                   const parallel::StageSizes& cut, int rank, nn::Batching batching) {
  const nn::Chain chain = whole.chain();
  double layers = 0;
  bool head = false;
  std::size_t begin = 0;
  std::vector<std::shared_ptr<nn::LayerImpl>> own;
  std::map<const void*, int> stage_of;  // of a weight
  bool shares = false;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const std::size_t end = begin + static_cast<std::size_t>(cut[static_cast<std::size_t>(stage)]);
    if (schedule.rank_of(stage) == rank) {
      for (const nn::Link* link : chain.all_between(begin, end))
        for (const auto& layer : link->layers) {
          own.push_back(layer);
          for (const at::Tensor& one : layer->parameters())
            shares |= stage_of.try_emplace(one.unsafeGetTensorImpl(), stage).first->second != stage;
        }
      std::size_t place = 0;
      for (const nn::Link& link : chain.links) {
        const std::size_t first = place, parts = std::max<std::size_t>(1, link.inside.size());
        place += parts;
        const std::size_t from = std::max(begin, first), until = std::min(end, place);
        if (link.counts && from < until)
          layers += static_cast<double>(until - from) / static_cast<double>(parts);
      }
      head = head || end == chain.size();
    }
    begin = end;
  }
  const auto stages = static_cast<double>(schedule.stages_of(rank).size());
  const double in_flight = pipeline::peak_in_flight(schedule)[static_cast<std::size_t>(rank)];
  batching.layers = layers / stages * in_flight;
  batching.heads = head ? std::max(1.0, in_flight / stages) : 0;
  return {.parameters = nn::parameters_of(*nn::part_of_model(whole, own)),
          .batching = batching,
          .shares_weights = shares,
          .in_flight = {.stage_layers = layers / stages,
                        .in_flight = in_flight,
                        .backward_follows =
                            backward_follows(schedule.programs[static_cast<std::size_t>(rank)])}};
}

}  // namespace

Footprint footprint(const config::Config& config, nn::ModelImpl& whole, const Degrees& all_ranks,
                    c10::DeviceType device) {
  check_patterns(config, whole);
  check_except_last(config, all_ranks);
  const core::DType compute = policy_of(config, all_ranks).precision.dtypes->compute;
  const nn::Batching of_all = batching(config, all_ranks, item_bytes(compute), device);
  const Degrees degrees = in_lockstep(config, all_ranks);
  if (degrees.pipe == 1)
    return footprint_of(config, whole, all_ranks,
                        {.parameters = nn::parameters_of(whole), .batching = of_all});
  const pipeline::Schedule schedule = schedule_of(config, all_ranks);
  // The times that balancing would measure are not known here.
  config::Balance how = config.pipeline.balance;
  const bool by_time = how.by == config::Balance::By::Time;
  if (by_time) how.by = config::Balance::By::Parameters;
  nn::name_layers(whole);
  const nn::Chain chain = whole.chain();
  const auto stages = static_cast<std::size_t>(schedule.stages());
  const bool finer =
      by_time && stages > chain.all_between(0, chain.size()).size() && stages <= chain.size();
  const auto cut =
      finer ? parallel::cut_evenly(std::vector<double>(chain.size(), 1), schedule.stages())
            : cut_of(config, mesh_of_one(), whole, schedule, how);
  std::vector<int> versions(static_cast<std::size_t>(degrees.pipe), 1);
  if (is_asynchronous(config, degrees))
    versions = pipeline::peak_versions(periodic_schedule_of(config, degrees));
  Footprint fullest;
  for (int rank = 0; rank < degrees.pipe; ++rank) {
    RankShare share = share_of(whole, schedule, cut, rank, of_all);
    share.versions = versions[static_cast<std::size_t>(rank)];
    const Footprint one = footprint_of(config, whole, all_ranks, share);
    if (one.without_copy() > fullest.without_copy()) fullest = one;
  }
  return fullest;
}

std::string to_text(const Footprint& memory, Placement placement,
                    const std::string& gathered_note) {
  std::string text;
  const auto line = [&](const char* what, int64_t bytes, const std::string& note = "") {
    text += fmt::format("  {:<22}{:>10}{}{}\n", what, core::format_bytes(bytes),
                        note.empty() ? "" : "   ", note);
  };
  const bool offload = placement.gpu && placement.offload;
  const char* const libtorch = "and about 110 MiB for libtorch, mostly shared";
  text += placement.gpu ? "GPU memory of the fullest rank, at most:\n"
                        : "tensors of the fullest rank, at most:\n";
  // Offloaded masters are in the host's memory only; without masters the parameters are copied.
  const int64_t moved = offload ? memory.masters : 0;
  const int64_t copied = offload && memory.masters == 0 ? memory.parameters : 0;
  line("parameters", memory.parameters - moved);
  line("gradients", memory.gradients);
  if (!offload) line("optimizer", memory.optimizer);
  if (memory.gathered > 0) line("gathered weights", memory.gathered, gathered_note);
  if (memory.meetings > 0) line("meetings of replicas", memory.meetings);
  if (memory.versions > 0) line("past weights", memory.versions, "of steps in flight");
  line("activations", memory.activations);
  const char* const by_compression = "by compress.kind: what was not sent yet, twice";
  if (memory.residuals > 0 && !placement.gpu) line("residuals", memory.residuals, by_compression);
  const int64_t offloaded = offload ? memory.optimizer : 0;
  const int64_t on_host = placement.gpu ? memory.residuals : 0;
  line("together", memory.without_copy() - offloaded - moved - on_host,
       placement.gpu ? "" : libtorch);
  if (placement.gpu) text += "host memory of the same rank:\n";
  if (offload) line("optimizer", memory.optimizer, "by memory.offload");
  if (moved > 0) line("masters", moved, "by memory.offload");
  if (on_host > 0) line("residuals", on_host, by_compression);
  if (copied > 0) line("parameters", copied, "a copy, for the update");
  line("copy while saving", memory.copy, "this rank's share of the state");
  if (placement.gpu) line("together", offloaded + moved + copied + on_host + memory.copy, libtorch);
  return text;
}

}  // namespace trireme::train
