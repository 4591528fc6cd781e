#include "trireme/train/local_training.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <set>

#include "trireme/checkpoint/resume.h"
#include "trireme/comm/texts.h"
#include "trireme/core/error.h"
#include "trireme/train/attach.h"
#include "trireme/train/saved_residuals.h"

namespace trireme::train {

namespace {

using config::SyncKind;
using Purpose = parallel::LocalUpdates::Purpose;

std::shared_ptr<const parallel::OuterOptimizer> make_outer(const config::Sync& keys) {
  const parallel::OuterOptions options{.momentum = keys.momentum,
                                       .lr = keys.lr,
                                       .nesterov = keys.nesterov,
                                       .time_constant = keys.time_constant};
  switch (keys.kind) {
    case SyncKind::Bmuf: return parallel::make_bmuf(options);
    case SyncKind::SlowMo: return parallel::make_slowmo(options);
    case SyncKind::DiLoCo: return parallel::make_diloco(options);
    default: return parallel::make_averaging();
  }
}

std::string replica_prefix(std::size_t index) {
  return fmt::format("replica.{}/", index);
}

/// The tensors that all replicas have alike.
std::vector<checkpoint::Item> common_items(parallel::LocalUpdates& local, Purpose purpose) {
  std::vector<checkpoint::Item> items;
  for (const auto& [prefix, index, tensor, optional] : local.common(purpose)) {
    const parallel::ParameterShard& shard = local.shards()[index];
    for (std::size_t i = 0; i < shard.pieces.size(); ++i) {
      Piece piece = shard.pieces[i];
      piece.name = prefix + piece.name;
      items.push_back({.piece = std::move(piece),
                       .tensor = shard.part(tensor, i),
                       .same = writers_of_common(shard.reductions[i].same),
                       .optional = optional});
    }
  }
  return items;
}

/// The items of a replica, under its names.
std::vector<checkpoint::Item> renamed(std::vector<checkpoint::Item> items,
                                      const std::string& prefix) {
  for (checkpoint::Item& one : items) one.piece.name = prefix + one.piece.name;
  return items;
}

std::string meeting_prefix(std::size_t replica) {
  return replica_prefix(replica) + "meeting/";
}

/// The tensors of meetings that belong to this rank alone.
std::vector<checkpoint::Item> own_items(parallel::LocalUpdates& local, Purpose purpose) {
  std::vector<checkpoint::Item> items;
  const std::string prefix = meeting_prefix(static_cast<std::size_t>(local.meshes().index()));
  for (const parallel::ReducerState& one : local.own_states(purpose)) {
    items.push_back(checkpoint::whole(name_of(prefix, one, local.meshes().replica), one.tensor));
    items.back().same = {};
    items.back().optional = true;
  }
  return items;
}

/// Hands out what other replicas, or replicas that were cut in another way, had not sent yet: of R
/// replicas that continue, number k % R gets it from saved replica k. So the sum over all replicas
/// stays, in weight x move. Returns what people should know.
std::string load_residuals(format::Checkpoint& from, parallel::LocalUpdates* local) {
  const core::Json& extra = from.index().extra;
  const core::Json& replicas = extra.at("replicas");
  SavedResiduals all(from), mine(from);
  for (std::size_t k = 0; k < replicas.size(); ++k) {
    all.take(meeting_prefix(k));
    if (local == nullptr || k % static_cast<std::size_t>(local->meshes().count()) !=
                                static_cast<std::size_t>(local->meshes().index()))
      continue;
    const core::Json& fragments = replicas.at(k).at("local").at("reducers").at(0);
    mine.take(meeting_prefix(k), [&](const SavedResiduals::Taken& one) {
      if (one.kind == parallel::LocalUpdates::kUnsent) return 1.0;
      const auto f = extra.at("sync").at("fragment_of").at(one.parameter).get<std::size_t>();
      const double unit = fragments.at(f).at("unit");
      return unit > 0 ? 1 / unit : 0.0;  // 0: it has never met
    });
  }
  if (local != nullptr) local->restart_residuals(replicas.at(0).at("local").at("reducers").at(0));
  if (all.empty()) return "";
  if (local == nullptr) return "what compressed meetings have not sent yet is dropped";
  mine.put(local->own_states(Purpose::Load), [](const parallel::ReducerState&) { return true; });
  return "what compressed meetings have not sent yet is kept for the next one";
}

/// Has the checkpoint residuals of weights that were not compressed any more?
bool has_unsent(const format::Checkpoint& from) {
  const std::string kind = fmt::format("/meeting/{}/", parallel::LocalUpdates::kUnsent);
  return std::ranges::any_of(from.index().tensors, [&](const auto& one) {
    return one.first.find(kind) != std::string::npos;
  });
}

/// What saved replica `k` had counted for a parameter since it last met; 0 for other tensors.
parallel::LocalUpdates::Counted counted_by(const core::Json& extra, const std::string& name,
                                           std::size_t k) {
  const core::Json& fragment_of = extra.at("sync").at("fragment_of");
  if (!fragment_of.contains(name)) return {};
  const core::Json& counted = extra.at("replicas").at(k).at("local").at("counted");
  const core::Json& own = counted.at(fragment_of.at(name).get<std::size_t>());
  return {.weight = own.at(0), .block = {.samples = own.at(2)}};
}

/// The same of all replicas together.
parallel::LocalUpdates::Counted counted_of(const core::Json& extra, const std::string& name) {
  parallel::LocalUpdates::Counted all{.block = {.inner_rate = extra.at("sync").at("rate")}};
  for (std::size_t k = 0; k < extra.at("replicas").size(); ++k) {
    const auto one = counted_by(extra, name, k);
    all.weight += one.weight;
    all.block.samples += one.block.samples;
  }
  return all;
}

/// Loads the state of every saved replica in turn, and leaves the mean in `own`: of weights by the
/// weight that each replica counted since the last meeting, of the rest evenly. What is the same in
/// all replicas stays so to the bit: frozen weights, and the counts of a buffer.
void load_means(format::Checkpoint& from, const checkpoint::State& own) {
  const core::Json& extra = from.index().extra;
  const std::size_t replicas = extra.at("replicas").size();
  std::vector<at::Tensor> first, means;
  for (std::size_t k = 0; k < replicas; ++k) {
    checkpoint::State one;
    one.items = renamed(own.items, replica_prefix(k));
    for (checkpoint::Item& item : one.items) item.tensor = at::zeros_like(item.tensor);
    checkpoint::load(from, one);
    for (std::size_t i = 0; i < own.items.size(); ++i) {
      const at::Tensor value = one.items[i].tensor.to(at::kDouble);
      if (k == 0) {
        first.push_back(value);
        means.push_back(value.clone());
        continue;
      }
      const std::string& name = own.items[i].piece.name;  // of a weight, or of something else
      const double all = counted_of(extra, name).weight;
      means[i].add_(value - first[i], all > 0 ? counted_by(extra, name, k).weight / all
                                              : 1 / static_cast<double>(replicas));
    }
  }
  for (std::size_t i = 0; i < means.size(); ++i) {
    const at::Tensor& to = own.items[i].tensor;
    to.copy_(to.is_floating_point() ? means[i] : means[i].round());
  }
}

}  // namespace

bool is_local(const config::Config& config) {
  return config.sync.is_local();
}

RankSet writers_of_own(RankSet same) {
  std::erase(same.axes, Axis::Replica);
  return same;
}

RankSet writers_of_common(RankSet same) {
  same.axes.push_back(Axis::Replica);
  same.axes = sorted(std::move(same.axes));
  return same;
}

std::optional<parallel::ReplicaMeshes> replica_meshes(const config::Config& config,
                                                      const Mesh& mesh) {
  if (!is_local(config)) return std::nullopt;
  return parallel::split_replicas(mesh, static_cast<int>(config.sync.inner_group));
}

std::unique_ptr<parallel::LocalUpdates> make_local_updates(
    const config::Config& config, const parallel::ReplicaMeshes& meshes,
    const std::vector<parallel::ParameterShard>& shards) {
  const config::Sync& keys = config.sync;
  const auto tokens = static_cast<double>(config.model.targets());
  return std::make_unique<parallel::LocalUpdates>(
      meshes, shards,
      parallel::LocalOptions{
          .outer = make_outer(keys),
          .every = keys.seconds > 0 ? std::numeric_limits<int64_t>::max() : keys.every,
          .fragments = keys.fragments,
          .delay = keys.delay,
          .keep_own = keys.keep_own,
          .expected_weight =
              static_cast<double>(config.batch.global * keys.every) * tokens / meshes.count(),
          .compress = compress_of(config)});
}

at::Tensor common_buffer(const at::Tensor& buffer, const parallel::ReplicaMeshes& meshes) {
  at::Tensor sum =
      buffer.detach().to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
  meshes.meeting.world().all_reduce(sum).wait();
  const at::Tensor mean = sum / meshes.count();
  return (buffer.is_floating_point() ? mean : mean.round()).to(buffer.options());
}

CommonBuffers::CommonBuffers(const parallel::Buffers& buffers,
                             const parallel::ReplicaMeshes& meshes) {
  const at::NoGradGuard guard;
  for (const auto& [name, tensor] : buffers) {
    own_.emplace_back(tensor, tensor.detach().clone());
    own_.back().first.detach().copy_(common_buffer(tensor, meshes));
  }
}

CommonBuffers::~CommonBuffers() {
  const at::NoGradGuard guard;
  for (const auto& [tensor, value] : own_) tensor.detach().copy_(value);
}

checkpoint::State with_replicas(checkpoint::State own, parallel::LocalUpdates& local) {
  const parallel::ReplicaMeshes& meshes = local.meshes();
  own.extra["local"] = local.own_json();
  checkpoint::State all;
  const bool first = meshes.replica.coord(Axis::Replica) == 0;  // of those in lockstep
  const auto index = static_cast<std::size_t>(meshes.index());
  std::set<std::string> common;
  for (const parallel::ParameterShard& one : local.shards()) common.insert(one.name);
  for (checkpoint::Item& one : own.items) {
    one.same = writers_of_own(std::move(one.same));
    one.writes = one.writes && first;
    // Whoever reads by the names of the model gets what replicas have in common: of buffers their
    // mean, of frozen parameters replica 0's.
    const bool is_buffer = one.piece.name.starts_with("buffer/");
    const at::Tensor mean = is_buffer ? common_buffer(one.tensor, meshes) : at::Tensor();
    const bool of_model = one.piece.name.find('/') == std::string::npos || is_buffer;
    if (!of_model || common.contains(one.piece.name) || index != 0) continue;
    all.items.push_back(one);
    if (is_buffer) all.items.back().tensor = mean;
  }
  for (checkpoint::Item& one : renamed(std::move(own.items), replica_prefix(index)))
    all.items.push_back(std::move(one));
  for (checkpoint::Item& one : own_items(local, Purpose::Save)) all.items.push_back(std::move(one));
  for (checkpoint::Item& one : common_items(local, Purpose::Save))
    all.items.push_back(std::move(one));
  // The extra of a pipeline's cut is read before anything is built, and `optimizer` by tools.
  all.extra = own.extra;
  all.extra.erase("local");
  all.extra["sync"] = local.common_json();
  core::Json replicas = core::Json::array();
  for (const std::string& text : comm::all_gather_texts(meshes.meeting.world(), own.extra.dump()))
    replicas.push_back(core::parse_json(text, "the state of a replica"));
  all.extra["replicas"] = replicas;
  return all;
}

LoadedState load_replicas(format::Checkpoint& from, const checkpoint::State& own,
                          parallel::LocalUpdates* local) {
  const core::Json& extra = from.index().extra;
  if (local != nullptr) local->clear();  // another checkpoint may have been tried before
  if (!extra.contains("replicas")) {     // made in lockstep
    checkpoint::load(from, own);
    if (local == nullptr) return {extra, ""};
    local->restart();
    SavedResiduals residuals(from);
    residuals.take("reducer/");
    return {extra, residuals.empty() ? ""
                                     : "what compression of gradients has not sent yet is dropped: "
                                       "meetings send moves of weights, which have another unit"};
  }
  const core::Json& replicas = extra.at("replicas");
  checkpoint::State common;
  if (local != nullptr) common.items = common_items(*local, Purpose::Load);
  if (local != nullptr && replicas.size() == static_cast<std::size_t>(local->meshes().count())) {
    const auto index = static_cast<std::size_t>(local->meshes().index());
    checkpoint::State all;
    all.items = renamed(own.items, replica_prefix(index));
    const bool same_cut = local->is_cut_as(extra.at("sync")) && !has_unsent(from);
    if (same_cut)
      for (checkpoint::Item& one : own_items(*local, Purpose::Load))
        all.items.push_back(std::move(one));
    for (checkpoint::Item& one : common.items) all.items.push_back(std::move(one));
    checkpoint::load(from, all);
    local->restore(extra.at("sync"), replicas.at(index).at("local"));
    return {replicas.at(index), same_cut ? "" : load_residuals(from, local)};
  }
  load_means(from, own);
  if (local != nullptr) {
    checkpoint::load(from, common);
    std::vector<at::Tensor> means;
    for (const parallel::ParameterShard& one : local->shards())
      means.push_back(one.master.detach().clone());
    local->restart_from(means, [&](const std::string& name) { return counted_of(extra, name); });
  }
  const std::string residuals = load_residuals(from, local);
  return {replicas.at(0),
          fmt::format("the checkpoint has {} replicas: they meet, and all continue from there with "
                      "the mean of their optimizers' states{}{}",
                      replicas.size(), residuals.empty() ? "" : "; ", residuals)};
}

}  // namespace trireme::train
