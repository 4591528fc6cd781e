#include "trireme/parallel/packed_block.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "trireme/core/hash.h"
#include "trireme/layout/even_range.h"

namespace trireme::parallel {

PackedBlock::PackedBlock(const GradientBlock& block, Ranks ranks, Order order)
    : scatters_(!block.data.defined()),
      dtype_(scatters_ ? block.whole.front().scalar_type() : block.data.scalar_type()) {
  if (!scatters_) {
    for (const auto& [place, begin] : block.members)
      add(place, block.data.narrow(0, begin, place->numel()), 0);
    for (const Part& one : parts_) results_.push_back({one.begin, one.gradient});
    for (int rank = 0; rank < ranks.size; ++rank)
      slices_.push_back(even_range(numel_, ranks.size, rank).count);
  } else if (order == Order::ByMember) {
    for (std::size_t i = 0; i < block.members.size(); ++i) {
      const auto mine = block.rows[i].begin() + ranks.mine;
      results_.push_back(
          {numel_ + std::accumulate(block.rows[i].begin(), mine, int64_t{0}), block.shards[i]});
      add(block.members[i].place, block.whole[i], 0);
    }
    slices_.assign(static_cast<std::size_t>(ranks.size), 0);
  } else {
    for (int rank = 0; rank < ranks.size; ++rank) {
      const int64_t begin = numel_;
      for (std::size_t i = 0; i < block.members.size(); ++i) {
        if (rank == ranks.mine) results_.push_back({numel_, block.shards[i]});
        add_rows(block, i, rank);
      }
      slices_.push_back(numel_ - begin);
    }
  }
  std::string names;
  for (const BlockMember& one : block.members) names += one.place->name + '\n';
  name_ = core::hash64(names);
}

void PackedBlock::add(const GradientPlacePtr& place, at::Tensor gradient, int64_t in_place) {
  const int64_t begin = numel_;
  numel_ += gradient.numel();
  parts_.push_back({place, std::move(gradient), in_place, begin});
}

/// The rows of one rank of tensor `i`.
void PackedBlock::add_rows(const GradientBlock& block, std::size_t i, int rank) {
  const auto at = block.rows[i].begin() + rank;
  const int64_t begin = std::accumulate(block.rows[i].begin(), at, int64_t{0});
  add(block.members[i].place, block.whole[i].narrow(0, begin, *at), begin);
}

int64_t PackedBlock::slice_begin(int rank) const {
  return std::accumulate(slices_.begin(), slices_.begin() + rank, int64_t{0});
}

at::Tensor PackedBlock::gradients() const {
  at::Tensor packed = at::empty({numel_}, dtype_);
  for (const Part& one : parts_) packed.narrow(0, one.begin, one.numel()).copy_(one.gradient);
  return packed;
}

at::Tensor PackedBlock::residuals(Residuals& from) const {
  at::Tensor packed = at::empty({numel_}, dtype_);
  for (const Part& one : parts_)
    packed.narrow(0, one.begin, one.numel())
        .copy_(from.now(*one.place).narrow(0, one.in_place, one.numel()));
  return packed;
}

void PackedBlock::keep(Residuals& to, const at::Tensor& packed) const {
  for (const Part& one : parts_)
    to.now(*one.place)
        .narrow(0, one.in_place, one.numel())
        .copy_(packed.narrow(0, one.begin, one.numel()));
}

void PackedBlock::keep_more(Residuals& to, const at::Tensor& part, int64_t begin) const {
  for (const Part& one : parts_) {
    const int64_t from = std::max(begin, one.begin);
    const int64_t until = std::min(begin + part.numel(), one.begin + one.numel());
    if (from < until)
      to.now(*one.place)
          .narrow(0, one.in_place + from - one.begin, until - from)
          .add_(part.narrow(0, from - begin, until - from));
  }
}

void PackedBlock::put(const at::Tensor& packed, int64_t begin) const {
  for (const auto& [at, to] : results_)
    to.view({-1}).copy_(packed.narrow(0, at - begin, to.numel()));
}

}  // namespace trireme::parallel
