#include "trireme/parallel/buckets.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/parallel/byte_block.h"

namespace trireme::parallel {

namespace {

/// Can two gradients be summed by one operation?
bool is_alike(const BucketMember& a, const BucketMember& b) {
  return a.dtype() == b.dtype() && a.dtypes.reduce == b.dtypes.reduce;
}

}  // namespace

Buckets::Buckets(std::vector<BucketMember> members) {
  for (BucketMember& one : members) tracked_.push_back({.member = std::move(one)});
  // A guess until the order is known: backward reaches the parameter that was registered last
  // first.
  order_.resize(tracked_.size());
  std::iota(order_.rbegin(), order_.rend(), 0);
}

void Buckets::add(std::size_t parameter, const at::Tensor& gradient) {
  TrackedParameter& one = tracked_[parameter];
  if (one.bucket < next_) {  // the bucket's reduction is in flight: do not touch its memory
    if (one.late.defined())
      one.late.add_(gradient);
    else
      one.late = gradient.to(one.member.dtype(), /*non_blocking=*/false, /*copy=*/true);
  } else {
    put(parameter, gradient, one.here);
    one.here = true;
  }
  one.used = true;
}

void Buckets::arrive(std::size_t parameter) {
  TrackedParameter& one = tracked_[parameter];
  ++one.fires;
  if (!order_known_) {
    // Of several gradients the last counts: a parameter that waits for a late stage would delay the
    // buckets behind it.
    one.expected = one.fires;
    if (one.arrived) std::erase(arrivals_, static_cast<int64_t>(parameter));
    arrivals_.push_back(static_cast<int64_t>(parameter));
    one.arrived = true;
    return;
  }
  if (one.arrived || one.fires < one.expected) return;
  one.arrived = true;
  if (buckets_.empty()) return;
  --buckets_[one.bucket].waiting;
  while (next_ < buckets_.size() && buckets_[next_].waiting == 0) start(next_++);
}

void Buckets::start_rest() {
  while (next_ < buckets_.size()) start(next_++);
}

void Buckets::forget(bool whole_step) {
  next_ = 0;
  for (TrackedParameter& one : tracked_) {
    one.expected = std::max(one.expected,
                            one.fires);  // if the graph has changed, wait for all in the next step
    one.fires = 0;
    one.arrived = one.here = false;
    if (!whole_step) continue;
    one.used = false;
    one.late = at::Tensor();
  }
  for (Bucket& bucket : buckets_) bucket.waiting = bucket.members.size();
}

ReducedBuckets::ReducedBuckets(std::shared_ptr<Reducer> reducer, RankSet over,
                               std::vector<BucketMember> members, BucketSizes sizes)
    : Buckets(std::move(members)),
      reducer_(std::move(reducer)),
      over_(std::move(over)),
      lane_(reducer_->open_lane(over_)),
      group_(reducer_->group(over_, lane_)),
      sizes_(sizes),
      homes_(tracked_.size()),
      begins_(tracked_.size()) {
  std::vector<GradientPlacePtr> places;
  for (const TrackedParameter& one : tracked_)
    if (one.member.place != nullptr) places.push_back(one.member.place);
  reducer_->announce(places, over_, lane_);
  int64_t total = 0;
  for (const TrackedParameter& one : tracked_) total += padded(one.member.bytes());
  if (!tracked_.empty() && !alone())
    memory_ =
        group_.allocate({total}, tracked_.front().member.parameter.options().dtype(at::kByte));
  lay_out();
}

/// Gives every parameter its memory, in the order of arrival, and cuts the memory into buckets. A
/// bucket ends when it is full or when the dtype changes.
void ReducedBuckets::lay_out() {
  buckets_.clear();
  data_.clear();
  if (alone()) return;
  int64_t offset = 0, bucket_begin = 0;
  const auto close = [&] {
    if (buckets_.empty() || buckets_.back().members.empty()) return;
    Bucket& bucket = buckets_.back();
    const auto dtype = tracked_[bucket.members.front()].member.dtype();
    data_.push_back(tensor_on(
        memory_, bucket_begin,
        {(offset - bucket_begin) / static_cast<int64_t>(c10::elementSize(dtype))}, dtype));
    bucket.waiting = bucket.members.size();
  };
  for (int64_t index : order_) {
    const auto i = static_cast<std::size_t>(index);
    TrackedParameter& one = tracked_[i];
    const int64_t bytes = one.member.bytes();
    const int64_t limit = buckets_.size() <= 1 ? sizes_.first_bytes : sizes_.bytes;
    const bool full = !buckets_.empty() &&
                      (offset - bucket_begin + bytes > limit ||
                       !is_alike(tracked_[buckets_.back().members.front()].member, one.member));
    if (buckets_.empty() || full) {
      close();
      bucket_begin = offset;
      buckets_.emplace_back();
    }
    one.bucket = buckets_.size() - 1;
    begins_[i] = offset - bucket_begin;
    homes_[i] = tensor_on(memory_, offset, one.member.parameter.sizes(), one.member.dtype());
    buckets_.back().members.push_back(i);
    offset += padded(bytes);
  }
  close();
}

void ReducedBuckets::put(std::size_t parameter, const at::Tensor& gradient, bool more) {
  at::Tensor& home = homes_[parameter];
  const at::ScalarType dtype = tracked_[parameter].member.dtype();
  if (more) {
    widen(parameter);
    homes_[parameter].add_(gradient);
  } else if (alone() && (gradient.scalar_type() == dtype || gradient.is_cuda()))
    home = gradient.contiguous();
  else if (home.defined())
    home.copy_(gradient);
  else
    home = gradient.to(dtype).contiguous();
}

void ReducedBuckets::widen(std::size_t parameter) {
  at::Tensor& home = homes_[parameter];
  if (home.defined()) home = home.to(tracked_[parameter].member.dtype());
}

void ReducedBuckets::start(std::size_t bucket) {
  for (std::size_t i : buckets_[bucket].members) {
    if (!tracked_[i].here) homes_[i].zero_();
  }
  const BucketMember& first = tracked_[buckets_[bucket].members.front()].member;
  const core::DType wire = first.dtypes.reduce;
  if (first.dtypes.gradient() != wire && works_.size() >= kMostCopies) {
    works_.front().wait();
    works_.pop_front();
  }
  works_.push_back(reducer_->start(
      {.data = data_[bucket], .wire = wire, .lane = lane_, .members = members_of(bucket)}, over_));
}

std::vector<BlockMember> ReducedBuckets::members_of(std::size_t bucket) const {
  std::vector<BlockMember> members;
  for (const std::size_t i : buckets_[bucket].members) {
    const BucketMember& one = tracked_[i].member;
    if (one.place == nullptr) return {};
    members.push_back(
        {one.place, begins_[i] / static_cast<int64_t>(c10::elementSize(one.dtype()))});
  }
  return members;
}

void ReducedBuckets::start_rest() {
  if (alone()) {  // these gradients are of an earlier step
    for (std::size_t i = 0; i < tracked_.size(); ++i) {
      if (!tracked_[i].here) homes_[i] = at::Tensor();
    }
  }
  Buckets::start_rest();
}

at::Tensor& ReducedBuckets::home(std::size_t parameter) {
  at::Tensor& home = homes_[parameter];
  const BucketMember& member = tracked_[parameter].member;
  if (!home.defined()) home = at::zeros_like(member.parameter.detach(), member.dtype());
  return home;
}

void ReducedBuckets::wait() {
  for (StartedSum& work : works_) work.wait();
  works_.clear();
  if (!order_known_ && !arrivals_.empty()) {
    // Parameters without a gradient go last, in their old order.
    std::vector<bool> seen(tracked_.size());
    for (int64_t index : arrivals_) seen[static_cast<std::size_t>(index)] = true;
    for (int64_t index : order_) {
      if (!seen[static_cast<std::size_t>(index)]) arrivals_.push_back(index);
    }
    order_ = std::move(arrivals_);
    arrivals_.clear();
  }
  forget(/*whole_step=*/true);
}

std::vector<at::Tensor> ReducedBuckets::sum_late(std::size_t parameter, const at::Tensor& mine) {
  at::Tensor sum = mine.defined() ? mine : at::zeros_like(home(parameter));
  const core::DType wire = tracked_[parameter].member.dtypes.reduce;
  reducer_->start({.data = sum, .wire = wire, .lane = lane_}, over_).wait();
  return {sum};
}

void ReducedBuckets::agree_on_order() {
  if (order_known_) return;
  at::Tensor order = at::tensor(order_, at::kLong);
  group_.broadcast(order, 0).wait();
  reorder({order.data_ptr<int64_t>(), order.data_ptr<int64_t>() + order.numel()});
}

void ReducedBuckets::reorder(const std::vector<int64_t>& order) {
  std::vector<int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < tracked_.size(); ++i)
    core::check(sorted.size() == tracked_.size() && sorted[i] == static_cast<int64_t>(i),
                "gradients: the order of buckets names {} of {} parameters", sorted.size(),
                tracked_.size());
  order_known_ = moves_ = true;
  order_ = order;
}

void ReducedBuckets::begin_step() {
  if (std::exchange(moves_, false)) lay_out();
}

}  // namespace trireme::parallel
