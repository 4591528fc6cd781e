#include "trireme/parallel/local_updates.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <utility>

#include "trireme/comm/dtype.h"
#include "trireme/core/error.h"

namespace trireme::parallel {

namespace {

/// Replicas may be far apart in time; one that is dead or hangs is found by the monitor.
constexpr std::chrono::hours kMeetingTimeout{24};

/// The dtype in which a starting point is kept: 16 bits are too few to add small moves.
at::ScalarType wide(at::ScalarType dtype) {
  return comm::is_half(dtype) ? at::kFloat : dtype;
}

/// Weight, loss and samples of a step. They stay where its totals are: the host may not know yet
/// whether it was skipped.
at::Tensor counted_of(const LocalUpdates::Step& step) {
  const at::Tensor counted =
      at::cat({step.totals.narrow(0, 0, 2), at::full({1}, step.samples, step.totals.options())});
  if (!step.skipped.defined()) return counted;
  return at::where(step.skipped == 0, counted, at::zeros_like(counted));  // the loss may be nan
}

RankSet all_replicas() {
  return {.axes = {Axis::Replica}};
}

}  // namespace

ReplicaMeshes split_replicas(const Mesh& mesh, int inner_group) {
  const Degrees& degrees = mesh.degrees();
  if (inner_group < 1 || degrees.replica % inner_group != 0)
    throw ConfigError(fmt::format(
        "sync.inner_group = {} does not divide the {} replicas: use a divisor of mesh.replica",
        inner_group, degrees.replica));
  const int index = mesh.coord(Axis::Replica) / inner_group;
  Degrees inside = degrees;
  inside.replica = inner_group;
  const comm::Communicator one = mesh.world().split("replica", index, mesh.world().rank());
  const comm::Communicator across = mesh.world().split("meeting", one.rank(), index);
  ReplicaMeshes meshes{Mesh(one, inside, mesh.device()),
                       Mesh(across, {.replica = degrees.replica / inner_group}, mesh.device())};
  for (const comm::Communicator& group :
       {meshes.meeting.world(), meshes.meeting.group(Axis::Replica),
        meshes.meeting.group({Axis::Replica})})
    group.set_timeout(kMeetingTimeout);
  return meshes;
}

LocalUpdates::LocalUpdates(ReplicaMeshes meshes, std::vector<ParameterShard> shards,
                           LocalOptions options)
    : meshes_(std::move(meshes)),
      shards_(std::move(shards)),
      options_(std::move(options)),
      per_weight_(std::exp2(-std::round(std::log2(std::max(1.0, options_.expected_weight))))) {
  if (options_.every < 1)
    throw ConfigError(
        fmt::format("sync.every = {}: replicas meet after 1 or more steps", options_.every));
  if (options_.fragments < 1 || options_.fragments > options_.every)
    throw ConfigError(fmt::format(
        "sync.fragments = {} cannot take turns in sync.every = {} steps: use at most as many",
        options_.fragments, options_.every));
  if (options_.delay < 0 || options_.delay >= options_.every)
    throw ConfigError(fmt::format(
        "sync.delay = {} must be less than sync.every = {}: a fragment arrives before it meets "
        "again",
        options_.delay, options_.every));
  const at::NoGradGuard guard;
  for (const ParameterShard& one : shards_) {
    start_.push_back(one.master.detach().to(wide(one.master.scalar_type()), /*non_blocking=*/false,
                                            /*copy=*/true));
    velocity_.push_back(options_.outer->remembers() ? at::zeros_like(start_.back()) : at::Tensor());
  }
  unsent_.resize(shards_.size());
  cut_into_fragments();
}

/// Where the move of a shard belongs, for a reducer that remembers what it has not sent.
GradientPlacePtr LocalUpdates::place_of(std::size_t shard) const {
  const ParameterShard& of = shards_[shard];
  GradientPlace place{.name = of.name,
                      .shape = start_[shard].sizes().vec(),
                      .pieces = of.pieces,
                      .dtype = start_[shard].scalar_type() == at::kDouble ? core::DType::Float64
                                                                          : core::DType::Float32,
                      .first = meshes_.index() == 0};
  if (!of.sharded)
    for (const Reduction& one : of.reductions) place.boxes.push_back(one.box);
  return std::make_shared<const GradientPlace>(std::move(place));
}

/// Gives a fragment its memory and what sums it. Collective over the meeting.
void LocalUpdates::lay_out(Fragment& fragment) const {
  const auto counts = at::TensorOptions().dtype(at::kDouble).device(meshes_.replica.device());
  fragment.counted = at::zeros({kCounted}, counts);
  int64_t elements = 0;
  for (const std::size_t i : fragment.shards) elements += start_[i].numel();
  const auto options = fragment.shards.empty() ? counts : start_[fragment.shards.front()].options();
  fragment.flat = meshes_.meeting.group(Axis::Replica).allocate({elements}, options);
  fragment.reducer = make_reducer(meshes_.meeting, options_.compress);
  std::vector<GradientPlacePtr> places;
  int64_t begin = 0;
  for (std::size_t k = 0; k < fragment.shards.size(); ++k) {
    const std::size_t i = fragment.shards[k];
    TORCH_CHECK(start_[i].scalar_type() == fragment.flat.scalar_type(),
                "local updates need masters of one dtype");
    const int64_t count = start_[i].numel();
    fragment.moved.push_back(fragment.flat.narrow(0, begin, count).view(start_[i].sizes()));
    begin += count;
    if (k + fragment.num_plain >= fragment.shards.size()) continue;
    fragment.compressed_elems = begin;
    if (count == 0) continue;
    places.push_back(place_of(i));
    fragment.members.push_back({places.back(), begin - count});
  }
  fragment.reducer->announce(places, all_replicas(), 0);
}

/// Fragments take turns evenly: of F fragments, number f is f/F of a block later than the first.
bool LocalUpdates::is_due(std::size_t fragment, int64_t step) const {
  const auto offset = static_cast<int64_t>(fragment) * options_.every / options_.fragments;
  return (step - offset) % options_.every == 0 && step > 0;
}

/// The squared length of what this rank counts of a fragment's move.
at::Tensor LocalUpdates::squares_of(const Fragment& fragment) const {
  at::Tensor sum = at::zeros({}, fragment.counted.options());
  for (std::size_t k = 0; k < fragment.shards.size(); ++k) {
    const ParameterShard& shard = shards_[fragment.shards[k]];
    for (std::size_t i = 0; i < shard.reductions.size(); ++i)
      if (shard.reductions[i].counts)
        sum += at::linalg_vector_norm(shard.part(fragment.moved[k], i), 2, {}, false, at::kDouble)
                   .square();
  }
  return sum;
}

void LocalUpdates::start(Fragment& fragment, const Step& step) {
  for (std::size_t k = 0; k < fragment.shards.size(); ++k) {
    const std::size_t i = fragment.shards[k];
    const at::Tensor master = shards_[i].master.detach();
    // A master of 16 bits began at the start as it is in 16 bits.
    fragment.moved[k].copy_(master).sub_(start_[i].to(master.scalar_type()));
  }
  const at::Tensor weight = fragment.counted[0];
  Flight flight{.step = step.number, .totals = {}, .totals_work = {}};
  flight.totals = at::zeros({kTotals}, fragment.counted.options());
  flight.totals.narrow(0, 0, kCounted).copy_(fragment.counted);
  flight.totals[kStop].fill_(stop_);
  flight.totals[kSquares].copy_(squares_of(fragment) * weight);
  flight.totals[kRates].copy_(weight * step.rate);
  fragment.flat.mul_(weight.to(fragment.flat.scalar_type()) * per_weight_);
  for (std::size_t k = 0; k < fragment.shards.size(); ++k)
    if (const at::Tensor rest = std::exchange(unsent_[fragment.shards[k]], {}); rest.defined())
      fragment.moved[k].add_(rest, per_weight_);
  fragment.counted.zero_();
  stop_ = 0;
  if (meshes_.count() > 1) {
    flight.totals_work = meshes_.meeting.world().all_reduce(flight.totals);
    // The unit of residuals: with other steps between meetings it is another.
    fragment.reducer->expect({.weight = [unit = per_weight_] { return unit; }});
    const int64_t split = fragment.compressed_elems, rest = fragment.flat.numel() - split;
    if (split > 0)
      flight.sum = fragment.reducer->start({.name = "meeting",
                                            .data = fragment.flat.narrow(0, 0, split),
                                            .members = fragment.members},
                                           all_replicas());
    if (rest > 0)
      flight.plain_sum = fragment.reducer->start(
          {.name = "meeting", .data = fragment.flat.narrow(0, split, rest)}, all_replicas());
  }
  fragment.flight = std::move(flight);
}

/// Waits for the sum of a fragment; what was not sent of it is known then.
void LocalUpdates::wait(Fragment& fragment) const {
  if (std::exchange(fragment.flight->arrived, true)) return;
  fragment.flight->totals_work.wait();
  fragment.flight->sum.wait();
  fragment.flight->plain_sum.wait();
  fragment.reducer->end_step(per_weight_);
}

void LocalUpdates::apply(Fragment& fragment, Meeting& meeting, double keep_own) {
  const auto began = std::chrono::steady_clock::now();
  wait(fragment);
  const Flight flight = std::move(*fragment.flight);
  fragment.flight.reset();
  const at::Tensor host = flight.totals.cpu();
  const auto* totals = host.data_ptr<double>();
  const double weight = totals[0];
  meeting.weight += weight;
  meeting.loss += totals[1];
  meeting.stop += totals[kStop];
  if (weight > 0) {  // otherwise no replica has moved
    fragment.flat.mul_(1 / (weight * per_weight_));
    at::Tensor drift = flight.totals[kSquares] / weight - squares_of(fragment);
    meshes_.replica.world().all_reduce(drift).wait();
    meeting.drift += drift.item<double>();
    const Block block{.samples = totals[2], .inner_rate = totals[kRates] / weight};
    for (std::size_t k = 0; k < fragment.shards.size(); ++k) {
      const std::size_t i = fragment.shards[k];
      options_.outer->advance(start_[i], fragment.moved[k].add_(start_[i]), velocity_[i], block);
      const at::Tensor master = shards_[i].master.detach();
      if (keep_own == 0)
        master.copy_(start_[i]);
      else
        master.mul_(keep_own).add_(start_[i].to(master.scalar_type()), 1 - keep_own);
    }
  }
  meeting.wait_ms +=
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
}

std::optional<Meeting> LocalUpdates::end_step(const Step& step) {
  const at::NoGradGuard guard;
  stop_ = std::max(stop_, step.stop);
  rate_ = step.rate;
  std::optional<Meeting> meeting;
  const at::Tensor counted = counted_of(step);
  for (std::size_t f = 0; f < fragments_.size(); ++f) {
    Fragment& one = fragments_[f];
    one.counted.add_(counted);
    if (is_due(f, step.number)) start(one, step);
    if (!one.flight) continue;
    if (step.number < one.flight->step + options_.delay) continue;
    if (!meeting) meeting.emplace();
    apply(one, *meeting, options_.delay > 0 ? options_.keep_own : 0);
  }
  if (meeting) meeting->drift = std::sqrt(std::max(0.0, meeting->drift));
  return meeting;
}

Meeting LocalUpdates::meet(const Step& step) {
  const at::NoGradGuard guard;
  stop_ = std::max(stop_, step.stop);
  rate_ = step.rate;
  Meeting meeting;
  for (Fragment& one : fragments_) {
    start(one, step);
    apply(one, meeting, 0);
  }
  meeting.drift = std::sqrt(std::max(0.0, meeting.drift));
  return meeting;
}

LocalUpdates::~LocalUpdates() {
  for (Fragment& one : fragments_) {
    if (!one.flight || std::uncaught_exceptions() > 0) continue;
    try {
      wait(one);
    } catch (...) {  // the world keeps the cause and throws it at the next operation
    }
  }
}

std::string LocalUpdates::take_news() {
  std::string all;
  for (const Fragment& one : fragments_) all += one.reducer->take_news();
  return all;
}

LocalUpdates::CommonWeights::CommonWeights(const LocalUpdates& local) : local_(local) {
  const at::NoGradGuard guard;
  for (std::size_t i = 0; i < local.shards_.size(); ++i) {
    own_.push_back(local.shards_[i].master.detach().clone());
    local.shards_[i].master.detach().copy_(local.start_[i]);
  }
}

LocalUpdates::CommonWeights::~CommonWeights() {
  const at::NoGradGuard guard;
  for (std::size_t i = 0; i < own_.size(); ++i) local_.shards_[i].master.detach().copy_(own_[i]);
}

}  // namespace trireme::parallel
