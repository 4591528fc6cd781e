#include "trireme/parallel/buckets.h"

#include <ATen/TensorUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <numeric>

#include "trireme/core/error.h"

namespace trireme::parallel {

namespace {

constexpr int64_t kAlignBytes = 128;  // 16 elements of the widest dtype

int64_t padded(int64_t bytes) {
  return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

/// A tensor on part of a block of bytes. Not a view: optimizers may detach it in place.
at::Tensor tensor_on(const at::Tensor& block, int64_t offset_bytes, at::IntArrayRef shape,
                     at::ScalarType dtype) {
  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t begin =
      block.storage_offset() + offset_bytes;  // in bytes: the block's items are bytes
  return at::empty({0}, block.options().dtype(dtype))
      .set_(block.storage(), begin / item, shape, at::detail::defaultStrides(shape));
}

}  // namespace

Buckets::Buckets(comm::Communicator group, std::vector<at::Tensor> parameters, BucketSizes sizes)
    : group_(std::move(group)), sizes_(sizes) {
  int64_t total = 0;
  for (const at::Tensor& parameter : parameters) {
    places_.push_back({.parameter = parameter, .home = {}});
    total += padded(static_cast<int64_t>(parameter.nbytes()));
  }
  if (!parameters.empty() && !alone())
    memory_ = group_.allocate({total}, parameters.front().options().dtype(at::kByte));
  // Until it is known better: the last registered is the first that backward reaches.
  order_.resize(places_.size());
  std::iota(order_.rbegin(), order_.rend(), 0);
  lay_out();
}

/// Gives every parameter its place, in order, and cuts the memory into buckets.
void Buckets::lay_out() {
  buckets_.clear();
  if (alone()) return;
  int64_t offset = 0, bucket_begin = 0;
  const auto close = [&] {
    if (buckets_.empty() || buckets_.back().members.empty()) return;
    Bucket& bucket = buckets_.back();
    const auto dtype = places_[bucket.members.front()].parameter.scalar_type();
    bucket.data =
        tensor_on(memory_, bucket_begin,
                  {(offset - bucket_begin) / static_cast<int64_t>(c10::elementSize(dtype))}, dtype);
    bucket.waiting = bucket.members.size();
  };
  for (int64_t index : order_) {
    const auto i = static_cast<std::size_t>(index);
    Place& place = places_[i];
    const auto bytes = static_cast<int64_t>(place.parameter.nbytes());
    const int64_t limit = buckets_.size() <= 1 ? sizes_.first_bytes : sizes_.bytes;
    const bool full =
        !buckets_.empty() && (offset - bucket_begin + bytes > limit ||
                              places_[buckets_.back().members.front()].parameter.scalar_type() !=
                                  place.parameter.scalar_type());
    if (buckets_.empty() || full) {
      close();
      bucket_begin = offset;
      buckets_.emplace_back();
    }
    place.offset_bytes = offset;
    place.bucket = buckets_.size() - 1;
    place.home = tensor_on(memory_, offset, place.parameter.sizes(), place.parameter.scalar_type());
    buckets_.back().members.push_back(i);
    offset += padded(bytes);
  }
  close();
}

void Buckets::add(std::size_t parameter, const at::Tensor& gradient) {
  Place& place = places_[parameter];
  if (alone() && !place.used) {
    place.home = gradient.contiguous();
  } else if (place.bucket < next_) {  // its bucket is being reduced: keep out of that memory
    if (place.late.defined())
      place.late.add_(gradient);
    else
      place.late = gradient.clone();
  } else if (place.used) {
    place.home.add_(gradient);
  } else {
    place.home.copy_(gradient);
  }
  place.used = true;
}

void Buckets::arrive(std::size_t parameter) {
  Place& place = places_[parameter];
  ++place.fires;
  if (!ordered_) {
    place.expected = place.fires;
    if (!place.arrived) arrivals_.push_back(static_cast<int64_t>(parameter));
    place.arrived = true;
    return;
  }
  if (place.arrived || place.fires < place.expected) return;
  place.arrived = true;
  if (alone()) return;
  --buckets_[place.bucket].waiting;
  while (next_ < buckets_.size() && buckets_[next_].waiting == 0) start(buckets_[next_++]);
}

void Buckets::start(Bucket& bucket) {
  works_.push_back(group_.all_reduce(bucket.data));
}

const at::Tensor& Buckets::home(std::size_t parameter) {
  Place& place = places_[parameter];
  if (!place.home.defined())
    place.home = at::zeros_like(place.parameter, at::MemoryFormat::Contiguous);
  return place.home;
}

void Buckets::start_rest() {
  if (alone()) {  // what backward has put there before is not of this step
    for (Place& place : places_) {
      if (!place.used) place.home = at::Tensor();
    }
  }
  for (; next_ < buckets_.size(); ++next_) {
    for (std::size_t i : buckets_[next_].members) {
      if (!places_[i].used) places_[i].home.zero_();
    }
    start(buckets_[next_]);
  }
}

void Buckets::wait() {
  for (comm::Work& work : works_) work.wait();
  works_.clear();
  next_ = 0;
  if (!ordered_ && !arrivals_.empty()) {
    // What was not seen goes last, as it was.
    std::vector<bool> seen(places_.size());
    for (int64_t index : arrivals_) seen[static_cast<std::size_t>(index)] = true;
    for (int64_t index : order_) {
      if (!seen[static_cast<std::size_t>(index)]) arrivals_.push_back(index);
    }
    order_ = std::move(arrivals_);
    arrivals_.clear();
  }
  for (Place& place : places_) {
    place.expected = std::max(place.expected, place.fires);  // the graph has changed: wait for all
    place.fires = 0;
    place.used = place.arrived = false;
    place.late = at::Tensor();
  }
  for (Bucket& bucket : buckets_) bucket.waiting = bucket.members.size();
}

void Buckets::reorder(const std::vector<int64_t>& order) {
  std::vector<int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < places_.size(); ++i)
    core::check(sorted.size() == places_.size() && sorted[i] == static_cast<int64_t>(i),
                "gradients: the order of buckets names {} of {} parameters", sorted.size(),
                places_.size());
  ordered_ = true;
  if (!memory_.defined()) {
    order_ = order;
    return;
  }
  const at::Tensor before = memory_.clone();
  std::vector<int64_t> offsets;
  for (const Place& place : places_) offsets.push_back(place.offset_bytes);
  order_ = order;
  lay_out();
  for (std::size_t i = 0; i < places_.size(); ++i)
    places_[i].home.copy_(
        tensor_on(before, offsets[i], places_[i].home.sizes(), places_[i].home.scalar_type()));
}

}  // namespace trireme::parallel
