#include "trireme/parallel/unit_buckets.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "trireme/parallel/byte_block.h"

namespace trireme::parallel {

namespace {

std::vector<BucketMember> bucket_members(const std::vector<UnitMember>& members) {
  std::vector<BucketMember> all;
  for (const UnitMember& one : members) all.push_back({one.parameter, one.shards.dtypes});
  return all;
}

int64_t item_bytes(at::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

}  // namespace

UnitBuckets::UnitBuckets(std::shared_ptr<Reducer> reducer, GradientSums sums,
                         std::vector<UnitMember> members, std::vector<std::string> names)
    : Buckets(bucket_members(members)),
      reducer_(std::move(reducer)),
      sums_over_(std::move(sums)),
      shards_lane_(reducer_->open_lane(sums_over_.shards)),
      rest_lane_(reducer_->open_lane(sums_over_.rest)),
      rest_(reducer_->group(sums_over_.rest, rest_lane_)),
      members_(std::move(members)),
      names_(std::move(names)),
      offsets_(members_.size()),
      shard_offsets_(members_.size()) {
  lay_out();
  announce();
  // A guess until the order is known: backward reaches the last unit first.
  std::vector<std::size_t> order(names_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  set_unit_order(order);
  order_known_ = true;
}

void UnitBuckets::announce() {
  std::vector<GradientPlacePtr> whole, shards;
  for (const UnitMember& one : members_) {
    whole.insert(whole.end(), one.places.begin(), one.places.end());
    shards.insert(shards.end(), one.shard_places.begin(), one.shard_places.end());
  }
  reducer_->announce(whole, sums_over_.shards, shards_lane_);
  reducer_->announce(shards, sums_over_.rest, rest_lane_);
}

std::vector<BlockMember> UnitBuckets::shard_members(std::size_t bucket) const {
  std::vector<BlockMember> members;
  for (const std::size_t i : buckets_[bucket].members)
    for (std::size_t b = 0; b < members_[i].shard_places.size(); ++b)
      members.push_back({members_[i].shard_places[b], shard_offsets_[i][b]});
  return members;
}

/// Makes a bucket for each unit and pair of dtypes (of gradients here and on the wire), and gives
/// each parameter its offsets in the bucket's block and shards.
void UnitBuckets::lay_out() {
  std::map<std::tuple<std::size_t, at::ScalarType, core::DType>, std::size_t> found;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const UnitMember& member = members_[i];
    const auto dtype = tracked_[i].member.dtype();
    const core::DType wire = tracked_[i].member.dtypes.reduce;
    const auto [bucket, is_new] = found.try_emplace({member.unit, dtype, wire}, units_.size());
    if (is_new) {
      units_.push_back(
          {.unit = member.unit, .dtype = dtype, .wire = wire, .block = {}, .shards = {}});
      buckets_.emplace_back();
    }
    UnitBlock& unit = units_[bucket->second];
    offsets_[i] = unit.bytes;
    unit.bytes += padded(member.shards.numel * item_bytes(dtype));
    for (const ShardedBox& box : member.shards.boxes) {
      shard_offsets_[i].push_back(unit.shard_elems);
      unit.shard_elems +=
          (box.piece.count + Layout::kFlatBorder - 1) / Layout::kFlatBorder * Layout::kFlatBorder;
    }
    buckets_[bucket->second].members.push_back(i);
    tracked_[i].bucket = bucket->second;
  }
}

void UnitBuckets::set_unit_order(const std::vector<std::size_t>& units) {
  std::vector<std::size_t> rank(names_.size(), units.size());
  for (std::size_t i = 0; i < units.size(); ++i) rank[units[i]] = i;
  std::vector<std::size_t> order(units_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return rank[units_[a].unit] < rank[units_[b].unit];
  });
  std::vector<UnitBlock> moved;
  std::vector<Bucket> buckets;
  order_.clear();
  for (std::size_t to = 0; to < order.size(); ++to) {
    moved.push_back(std::move(units_[order[to]]));
    buckets.push_back(std::move(buckets_[order[to]]));
    buckets.back().waiting = buckets.back().members.size();
    for (std::size_t i : buckets.back().members) {
      tracked_[i].bucket = to;
      order_.push_back(static_cast<int64_t>(i));
    }
  }
  units_ = std::move(moved);
  buckets_ = std::move(buckets);
}

at::TensorOptions UnitBuckets::byte_options() const {
  return members_.front().parameter.options().dtype(at::kByte).requires_grad(false);
}

at::Tensor UnitBuckets::box_in(const UnitBlock& unit, std::size_t parameter,
                               const ShardedBox& box) const {
  return tensor_on(unit.block, offsets_[parameter] + box.begin * item_bytes(unit.dtype),
                   {box.numel()}, unit.dtype);
}

void UnitBuckets::put(std::size_t parameter, const at::Tensor& gradient, bool more) {
  UnitBlock& unit = units_[tracked_[parameter].bucket];
  need_block(unit);
  const UnitMember& member = members_[parameter];
  if (member.shards.plain) {
    at::Tensor home = tensor_on(unit.block, offsets_[parameter], gradient.sizes(), unit.dtype);
    more ? home.add_(gradient) : home.copy_(gradient);
    return;
  }
  for (const ShardedBox& box : member.shards.boxes) {
    at::Tensor home = box_in(unit, parameter, box).view(box.local().box.shape);
    const at::Tensor part = nn::part_of(gradient, box.local());
    more ? home.add_(part) : home.copy_(part);
  }
}

StartedSum UnitBuckets::scatter(std::size_t bucket, const ShardOf& shard_of) {
  const UnitBlock& unit = units_[bucket];
  GradientBlock block{.name = names_[unit.unit], .wire = unit.wire, .lane = shards_lane_};
  for (std::size_t i : buckets_[bucket].members) {
    const auto& boxes = members_[i].shards.boxes;
    for (std::size_t b = 0; b < boxes.size(); ++b) {
      at::Tensor whole = box_in(unit, i, boxes[b]);
      if (!tracked_[i].here) whole.zero_();
      block.shards.push_back(shard_of(i, b));
      if (!members_[i].places.empty()) block.members.push_back({members_[i].places[b]});
      block.whole.push_back(std::move(whole));
      block.rows.push_back(boxes[b].counts);
    }
  }
  return reducer_->start(std::move(block), sums_over_.shards);
}

std::vector<at::Tensor> UnitBuckets::sum_late(std::size_t parameter, const at::Tensor& mine) {
  std::vector<at::Tensor> sums;
  const BucketMember& member = tracked_[parameter].member;
  const core::DType wire = member.dtypes.reduce;
  const auto options = member.parameter.options().dtype(member.dtype()).requires_grad(false);
  for (const ShardedBox& box : members_[parameter].shards.boxes) {
    const at::Tensor whole = mine.defined()
                                 ? nn::part_of(mine, box.local()).reshape({-1}).contiguous()
                                 : at::zeros({box.numel()}, options);
    at::Tensor sum = at::empty({box.piece.count}, options);
    reducer_
        ->start({.whole = {whole},
                 .shards = {sum},
                 .rows = {box.counts},
                 .wire = wire,
                 .lane = shards_lane_},
                sums_over_.shards)
        .wait();
    reducer_->start({.data = sum, .wire = wire, .lane = rest_lane_}, sums_over_.rest).wait();
    sums.push_back(std::move(sum));
  }
  return sums;
}

WholeUnitBuckets::WholeUnitBuckets(std::shared_ptr<Reducer> reducer, GradientSums sums,
                                   std::vector<UnitMember> members, std::vector<std::string> names)
    : UnitBuckets(std::move(reducer), std::move(sums), std::move(members), std::move(names)) {
  int64_t total = 0;
  for (const UnitBlock& unit : units_) total += unit.bytes;
  memory_ = reducer_->group(sums_over_.all).allocate({total}, byte_options());
  int64_t begin = 0;
  for (UnitBlock& unit : units_) {
    unit.block = memory_.narrow(0, begin, unit.bytes);
    begin += unit.bytes;
  }
}

std::vector<at::Tensor> WholeUnitBuckets::homes(std::size_t parameter) {
  const UnitBlock& unit = units_[tracked_[parameter].bucket];
  std::vector<at::Tensor> all;
  for (const ShardedBox& box : members_[parameter].shards.boxes)
    all.push_back(tensor_on(
        unit.block, offsets_[parameter] + (box.begin + box.piece.begin) * item_bytes(unit.dtype),
        {box.piece.count}, unit.dtype));
  return all;
}

void WholeUnitBuckets::start(std::size_t bucket) {
  const UnitBlock& unit = units_[bucket];
  in_flight_.push_back({bucket, scatter(bucket, [&](std::size_t i, std::size_t b) {
                          const ShardedBox& box = members_[i].shards.boxes[b];
                          return box_in(unit, i, box).narrow(0, box.piece.begin, box.piece.count);
                        })});
  if (in_flight_.size() > 1) complete_oldest();
}

/// Waits for the oldest reduce-scatter, then starts to sum its shards over the rest.
void WholeUnitBuckets::complete_oldest() {
  InFlight oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  oldest.work.wait();
  if (!is_summed_over_rest()) return;
  std::vector<at::Tensor> shards;
  std::vector<GradientPlacePtr> places;
  for (std::size_t i : buckets_[oldest.bucket].members) {
    for (at::Tensor& home : homes(i)) shards.push_back(std::move(home));
    for (const GradientPlacePtr& one : members_[i].shard_places) places.push_back(one);
  }
  sums_.emplace_back(*reducer_, sums_over_.rest, units_[oldest.bucket].wire, rest_lane_)
      .start(shards, places);
}

void WholeUnitBuckets::wait() {
  while (!in_flight_.empty()) complete_oldest();
  for (PackedSum& one : sums_) one.wait();
  sums_.clear();
  forget(/*whole_step=*/true);
}

ScatteredBuckets::ScatteredBuckets(std::shared_ptr<Reducer> reducer, GradientSums sums,
                                   std::vector<UnitMember> members, std::vector<std::string> names)
    : UnitBuckets(std::move(reducer), std::move(sums), std::move(members), std::move(names)) {
  int64_t largest = 0, total = 0;
  for (const UnitBlock& unit : units_) {
    largest = std::max(largest, unit.bytes);
    total += padded(unit.shard_elems * item_bytes(unit.dtype));
  }
  for (std::size_t i = 0; i < std::min(kBlocks, units_.size()); ++i)
    free_.push_back(
        reducer_->group(sums_over_.shards, shards_lane_).allocate({largest}, byte_options()));
  shard_memory_ = rest_.allocate({total}, byte_options());
  int64_t begin = 0;
  for (UnitBlock& unit : units_) {
    unit.shards = tensor_on(shard_memory_, begin, {unit.shard_elems}, unit.dtype);
    begin += padded(static_cast<int64_t>(unit.shards.nbytes()));
  }
}

at::Tensor ScatteredBuckets::shard_in(const at::Tensor& shards, std::size_t parameter,
                                      std::size_t box) const {
  return tensor_on(shards.view(at::kByte),
                   shard_offsets_[parameter][box] * item_bytes(shards.scalar_type()),
                   {members_[parameter].shards.boxes[box].piece.count}, shards.scalar_type());
}

std::vector<at::Tensor> ScatteredBuckets::homes(std::size_t parameter) {
  const UnitBlock& unit = units_[tracked_[parameter].bucket];
  std::vector<at::Tensor> all;
  for (std::size_t b = 0; b < members_[parameter].shards.boxes.size(); ++b)
    all.push_back(shard_in(unit.shards, parameter, b));
  return all;
}

void ScatteredBuckets::need_block(UnitBlock& unit) {
  if (unit.block.defined()) return;
  while (free_.empty() && !in_flight_.empty()) complete_oldest();
  unit.pooled = !free_.empty();
  if (!unit.pooled) {  // gradients arrive in an unexpected order: every block is in use
    unit.block = at::empty({unit.bytes}, byte_options());
    return;
  }
  unit.block = std::move(free_.back());
  free_.pop_back();
}

void ScatteredBuckets::start(std::size_t bucket) {
  UnitBlock& unit = units_[bucket];
  need_block(unit);
  InFlight started{bucket, {}, {}};
  at::Tensor to = unit.shards;
  if (unit.summed) to = started.more = at::empty_like(unit.shards);
  started.work = scatter(bucket, [&](std::size_t i, std::size_t b) { return shard_in(to, i, b); });
  unit.summed = true;
  in_flight_.push_back(std::move(started));
  if (in_flight_.size() > kBlocks) complete_oldest();
}

/// Waits for the oldest reduce-scatter and frees its block. After the last micro-batch it starts to
/// sum the shards over the rest.
void ScatteredBuckets::complete_oldest() {
  InFlight oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  oldest.work.wait();
  UnitBlock& unit = units_[oldest.bucket];
  if (oldest.more.defined()) unit.shards.add_(oldest.more);
  if (unit.pooled) free_.push_back(unit.block);
  unit.block = at::Tensor();
  if (last_ && is_summed_over_rest())
    sums_.push_back(reducer_->start({.data = unit.shards,
                                     .wire = unit.wire,
                                     .lane = rest_lane_,
                                     .members = shard_members(oldest.bucket)},
                                    sums_over_.rest));
}

void ScatteredBuckets::end_micro() {
  if (last_) return;
  start_rest();
  while (!in_flight_.empty()) complete_oldest();
  forget(/*whole_step=*/false);
}

void ScatteredBuckets::discard() {
  for (UnitBlock& unit : units_) unit.summed = false;
  Buckets::discard();
}

void ScatteredBuckets::wait() {
  while (!in_flight_.empty()) complete_oldest();
  for (StartedSum& work : sums_) work.wait();
  sums_.clear();
  for (UnitBlock& unit : units_) unit.summed = false;
  last_ = true;
  forget(/*whole_step=*/true);
}

int64_t ScatteredBuckets::memory_bytes() const {
  int64_t bytes = shard_memory_.numel();
  for (const at::Tensor& block : free_) bytes += block.numel();
  for (const UnitBlock& unit : units_) bytes += unit.block.defined() ? unit.block.numel() : 0;
  return bytes;
}

}  // namespace trireme::parallel
