#include "trireme/parallel/scattered_buckets.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "trireme/parallel/byte_block.h"

namespace trireme::parallel {

namespace {

std::vector<at::Tensor> tensors_of(const std::vector<ScatterMember>& members) {
  std::vector<at::Tensor> all;
  for (const ScatterMember& one : members) all.push_back(one.parameter);
  return all;
}

}  // namespace

ScatteredBuckets::ScatteredBuckets(ScatterGroups groups, std::vector<ScatterMember> members,
                                   std::vector<std::string> names, bool keep_whole)
    : Buckets(tensors_of(members)),
      groups_(std::move(groups)),
      members_(std::move(members)),
      names_(std::move(names)),
      keep_whole_(keep_whole),
      offsets_(members_.size()),
      shard_offsets_(members_.size()) {
  lay_out();
  const auto options = members_.front().parameter.options().dtype(at::kByte).requires_grad(false);
  int64_t total = 0, largest = 0, shards = 0;
  for (const Unit& unit : units_) {
    total += unit.bytes;
    largest = std::max(largest, unit.bytes);
    shards += padded(unit.shard_elems * static_cast<int64_t>(c10::elementSize(unit.dtype)));
  }
  if (keep_whole_) {
    whole_ = groups_.all.allocate({total}, options);
    int64_t begin = 0;
    for (Unit& unit : units_) {
      unit.block = whole_.narrow(0, begin, unit.bytes);
      begin += unit.bytes;
    }
  } else {
    for (std::size_t i = 0; i < std::min(kBlocks, units_.size()); ++i)
      free_.push_back(groups_.shards.allocate({largest}, options));
    shard_memory_ = groups_.rest.allocate({shards}, options);
    int64_t begin = 0;
    for (Unit& unit : units_) {
      unit.shards = tensor_on(shard_memory_, begin, {unit.shard_elems}, unit.dtype);
      begin += padded(static_cast<int64_t>(unit.shards.nbytes()));
    }
  }
  // Until it is known better: the last unit is the first that backward reaches.
  std::vector<std::size_t> order(names_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  set_unit_order(order);
  settled_ = true;
}

/// A bucket for each unit and dtype; places in its block and among its shards.
void ScatteredBuckets::lay_out() {
  std::map<std::pair<std::size_t, at::ScalarType>, std::size_t> found;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const ScatterMember& member = members_[i];
    const auto dtype = member.parameter.scalar_type();
    const auto [place, is_new] = found.try_emplace({member.unit, dtype}, units_.size());
    if (is_new) {
      units_.push_back({.unit = member.unit, .dtype = dtype, .block = {}, .shards = {}});
      buckets_.emplace_back();
    }
    Unit& unit = units_[place->second];
    offsets_[i] = unit.bytes;
    unit.bytes += padded(member.shards.numel * static_cast<int64_t>(c10::elementSize(dtype)));
    for (const ShardedBox& box : member.shards.boxes) {
      shard_offsets_[i].push_back(unit.shard_elems);
      unit.shard_elems +=
          (box.piece.count + Layout::kFlatBorder - 1) / Layout::kFlatBorder * Layout::kFlatBorder;
    }
    buckets_[place->second].members.push_back(i);
    places_[i].bucket = place->second;
  }
}

void ScatteredBuckets::set_unit_order(const std::vector<std::size_t>& units) {
  std::vector<std::size_t> rank(names_.size(), units.size());
  for (std::size_t i = 0; i < units.size(); ++i) rank[units[i]] = i;
  std::vector<std::size_t> order(units_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return rank[units_[a].unit] < rank[units_[b].unit];
  });
  std::vector<Unit> moved;
  std::vector<Bucket> buckets;
  order_.clear();
  for (std::size_t to = 0; to < order.size(); ++to) {
    moved.push_back(std::move(units_[order[to]]));
    buckets.push_back(std::move(buckets_[order[to]]));
    buckets.back().waiting = buckets.back().members.size();
    for (std::size_t i : buckets.back().members) {
      places_[i].bucket = to;
      order_.push_back(static_cast<int64_t>(i));
    }
  }
  units_ = std::move(moved);
  buckets_ = std::move(buckets);
}

at::Tensor ScatteredBuckets::box_in(const Unit& unit, std::size_t parameter,
                                    const ShardedBox& box) const {
  const auto item = static_cast<int64_t>(c10::elementSize(unit.dtype));
  return tensor_on(unit.block, offsets_[parameter] + box.begin * item, {box.numel()}, unit.dtype);
}

at::Tensor ScatteredBuckets::shard_in(const at::Tensor& shards, std::size_t parameter,
                                      std::size_t box) const {
  const auto item = static_cast<int64_t>(shards.element_size());
  return tensor_on(shards.view(at::kByte), shard_offsets_[parameter][box] * item,
                   {members_[parameter].shards.boxes[box].piece.count}, shards.scalar_type());
}

void ScatteredBuckets::take_block(Unit& unit) {
  while (free_.empty() && !flying_.empty()) settle_oldest();
  if (free_.empty()) {  // all are waiting for another: gradients come in an unexpected order
    unit.block = at::empty(
        {unit.bytes}, members_.front().parameter.options().dtype(at::kByte).requires_grad(false));
    unit.pooled = false;
    return;
  }
  unit.pooled = true;
  unit.block = std::move(free_.back());
  free_.pop_back();
}

void ScatteredBuckets::put(std::size_t parameter, const at::Tensor& gradient, bool more) {
  Unit& unit = units_[places_[parameter].bucket];
  if (!unit.block.defined()) take_block(unit);
  const ScatterMember& member = members_[parameter];
  if (member.shards.plain) {
    at::Tensor home = tensor_on(unit.block, offsets_[parameter], gradient.sizes(), unit.dtype);
    more ? home.add_(gradient) : home.copy_(gradient);
    return;
  }
  for (const ShardedBox& box : member.shards.boxes) {
    at::Tensor home = box_in(unit, parameter, box).view(box.held.box.shape);
    const at::Tensor part = nn::part_of(gradient, box.held);
    more ? home.add_(part) : home.copy_(part);
  }
}

void ScatteredBuckets::start(std::size_t bucket) {
  Unit& unit = units_[bucket];
  if (!unit.block.defined()) take_block(unit);
  Flying flying{bucket, {}, {}};
  at::Tensor to = unit.shards;
  if (!keep_whole_ && unit.summed) to = flying.more = at::empty_like(unit.shards);
  std::vector<at::Tensor> outs, ins;
  std::vector<comm::Rows> rows;
  for (std::size_t i : buckets_[bucket].members) {
    const auto& boxes = members_[i].shards.boxes;
    for (std::size_t b = 0; b < boxes.size(); ++b) {
      at::Tensor in = box_in(unit, i, boxes[b]);
      if (!places_[i].here) in.zero_();
      const Piece& piece = boxes[b].piece;
      outs.push_back(keep_whole_ ? in.narrow(0, piece.begin, piece.count) : shard_in(to, i, b));
      ins.push_back(std::move(in));
      rows.push_back(boxes[b].counts);
    }
  }
  flying.work = groups_.shards.reduce_scatter(std::move(outs), std::move(ins), comm::ReduceOp::Sum,
                                              std::move(rows), names_[unit.unit]);
  unit.summed = true;
  flying_.push_back(std::move(flying));
  if (flying_.size() > kBlocks) settle_oldest();
}

/// The oldest sum is there: its block is free, and in the last micro-batch the other ranks with the
/// same shards are next.
void ScatteredBuckets::settle_oldest() {
  Flying flying = std::move(flying_.front());
  flying_.pop_front();
  flying.work.wait();
  Unit& unit = units_[flying.bucket];
  if (flying.more.defined()) unit.shards.add_(flying.more);
  if (!keep_whole_) {
    if (unit.pooled) free_.push_back(unit.block);
    unit.block = at::Tensor();
  }
  if (!last_ || groups_.rest.size() == 1) return;
  if (keep_whole_)
    sum_homes(flying.bucket);
  else
    summing_.push_back({groups_.rest.all_reduce(unit.shards)});
}

/// Where gradients are kept whole, a unit's shards lie apart. Large ones are summed where they lie,
/// the small ones as one: each operation costs a few microseconds.
void ScatteredBuckets::sum_homes(std::size_t bucket) {
  constexpr std::size_t kSmallBytes = 64 << 10;
  std::vector<at::Tensor> small;
  for (std::size_t i : buckets_[bucket].members) {
    for (at::Tensor& home : homes(i)) {
      if (home.nbytes() < kSmallBytes)
        small.push_back(std::move(home));
      else
        summing_.push_back({groups_.rest.all_reduce(std::move(home))});
    }
  }
  if (small.empty()) return;
  at::Tensor packed = at::cat(small);
  comm::Work work = groups_.rest.all_reduce(packed);
  summing_.push_back({std::move(work), std::move(packed), std::move(small)});
}

void ScatteredBuckets::end_micro() {
  if (keep_whole_ || last_) return;
  start_rest();
  while (!flying_.empty()) settle_oldest();
  forget(/*whole_step=*/false);
}

void ScatteredBuckets::discard() {
  for (Unit& unit : units_) unit.summed = false;
  Buckets::discard();
}

void ScatteredBuckets::wait() {
  while (!flying_.empty()) settle_oldest();
  for (Summing& one : summing_) {
    one.work.wait();
    int64_t begin = 0;
    for (const at::Tensor& home : one.homes) {
      home.copy_(one.packed.narrow(0, begin, home.numel()));
      begin += home.numel();
    }
  }
  summing_.clear();
  for (Unit& unit : units_) unit.summed = false;
  last_ = true;
  forget(/*whole_step=*/true);
}

std::vector<at::Tensor> ScatteredBuckets::homes(std::size_t parameter) {
  const Unit& unit = units_[places_[parameter].bucket];
  std::vector<at::Tensor> all;
  const auto& boxes = members_[parameter].shards.boxes;
  for (std::size_t b = 0; b < boxes.size(); ++b) {
    const Piece& piece = boxes[b].piece;
    if (!keep_whole_) {
      all.push_back(shard_in(unit.shards, parameter, b));
      continue;
    }
    const auto item = static_cast<int64_t>(c10::elementSize(unit.dtype));
    all.push_back(tensor_on(unit.block, offsets_[parameter] + (boxes[b].begin + piece.begin) * item,
                            {piece.count}, unit.dtype));
  }
  return all;
}

void ScatteredBuckets::add_late(std::size_t parameter, const at::Tensor& mine) {
  const auto homes_now = homes(parameter);
  const auto& boxes = members_[parameter].shards.boxes;
  for (std::size_t b = 0; b < boxes.size(); ++b) {
    const at::Tensor in = mine.defined()
                              ? nn::part_of(mine, boxes[b].held).reshape({-1}).contiguous()
                              : at::zeros({boxes[b].numel()}, homes_now[b].options());
    at::Tensor sum = at::empty_like(homes_now[b]);
    groups_.shards.reduce_scatter(sum, in, comm::ReduceOp::Sum, boxes[b].counts).wait();
    groups_.rest.all_reduce(sum).wait();
    homes_now[b].add_(sum);
  }
}

int64_t ScatteredBuckets::memory_bytes() const {
  if (keep_whole_) return whole_.numel();
  int64_t bytes = shard_memory_.numel();
  for (const at::Tensor& block : free_) bytes += block.numel();
  for (const Unit& unit : units_) bytes += unit.block.defined() ? unit.block.numel() : 0;
  return bytes;
}

}  // namespace trireme::parallel
