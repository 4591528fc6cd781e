// randomk: all ranks send the same k elements of n, which Philox chooses from (seed, block, step).
// No index travels, and the values are summed by a plain collective.
//
//   n = 10, k = 3    | . . x | . x . | x . . . |     one element of each of k strata
//   values           | 2 | 4 | 6 |  ── all-reduce (or reduce-scatter) ──>  their sums
//
// One of each stratum, and not k of all, so that choosing costs k numbers and not n. With error
// feedback values travel as they are: what was not sent comes later (Stich, Cordonnier, Jaggi
// 2018). Without it they are multiplied by the size of their stratum, which makes the sum right on
// average (Konecny et al. 2016). With ratio 1 every stratum has one element, and the sum is exact.
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "trireme/core/philox.h"
#include "trireme/parallel/compressed_sum.h"

namespace trireme::parallel {

namespace {

/// How many of n elements travel. The last factor keeps 0.07 of 100, which is a little more than 7
/// in binary, at 7.
int64_t num_sent(int64_t count, double ratio) {
  if (count == 0) return 0;
  const double exact = ratio * static_cast<double>(count) * (1 - 1e-12);
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(exact)), 1, count);
}

struct Chosen {
  std::vector<int64_t> indices;
  std::vector<double> sizes;  // of their strata
  comm::Rows rows;            // of each slice
};

/// Chooses elements of every slice.
Chosen choose(const PackedBlock& packed, const SumContext& context, double ratio) {
  Chosen chosen;
  const uint64_t stream =
      packed.name() ^ static_cast<uint64_t>(context.again) * 0x9E3779B97F4A7C15u;
  int64_t begin = 0;
  for (const int64_t count : packed.slices()) {
    const int64_t sent = num_sent(count, ratio);
    for (int64_t j = 0; j < sent; ++j) {
      const int64_t from = j * count / sent, size = (j + 1) * count / sent - from;
      const auto words = core::philox(context.seed + static_cast<uint64_t>(context.step), stream,
                                      static_cast<uint64_t>(begin + from));
      const uint64_t draw = uint64_t{words[0]} << 32 | words[1];
      chosen.indices.push_back(begin + from +
                               static_cast<int64_t>(draw % static_cast<uint64_t>(size)));
      chosen.sizes.push_back(static_cast<double>(size));
    }
    chosen.rows.push_back(sent);
    begin += count;
  }
  return chosen;
}

class RandomSum final : public CompressedSum {
 public:
  RandomSum(GradientBlock block, const SumContext& context, double ratio)
      : block_(std::move(block)),
        mine_(context.first.rank()),
        packed_(block_, {mine_, context.first.size()}, PackedBlock::Order::ByRank) {
    Chosen chosen = choose(packed_, context, ratio);
    indices_ = at::tensor(chosen.indices, at::kLong);
    at::Tensor all = packed_.gradients();
    if (context.residuals != nullptr) {
      all.add_(packed_.residuals(*context.residuals));
      values_ = all.index_select(0, indices_);
      packed_.keep(*context.residuals, all.index_fill(0, indices_, 0));
    } else {
      values_ = all.index_select(0, indices_).mul_(at::tensor(chosen.sizes, packed_.dtype()));
    }
    // An overflow that was not chosen must show all the same: the step is skipped for it.
    if (const at::Tensor sum = all.sum(); values_.numel() > 0 && !sum.isfinite().item<bool>())
      values_.narrow(0, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
    if (!packed_.scatters()) {
      work_ = context.first.all_reduce(values_);
      return;
    }
    first_ = std::accumulate(chosen.rows.begin(), chosen.rows.begin() + mine_, int64_t{0});
    sums_ = at::empty({chosen.rows[static_cast<std::size_t>(mine_)]}, packed_.dtype());
    work_ = context.first.reduce_scatter(sums_, values_, comm::ReduceOp::Sum, chosen.rows);
  }

  bool arrived() const override { return work_.done(); }
  void start_second() override {}

  void finish() override {
    work_.wait();
    const int64_t begin = packed_.scatters() ? packed_.slice_begin(mine_) : 0;
    const int64_t count =
        packed_.scatters() ? packed_.slices()[static_cast<std::size_t>(mine_)] : packed_.numel();
    const at::Tensor sums = packed_.scatters() ? sums_ : values_;
    at::Tensor all = at::zeros({count}, packed_.dtype());
    all.index_copy_(0, indices_.narrow(0, first_, sums.numel()) - begin, sums);
    packed_.put(all, begin);
  }

 private:
  GradientBlock block_;  // keeps its memory
  int mine_;
  PackedBlock packed_;
  at::Tensor indices_, values_, sums_;
  int64_t first_ = 0;  // of the values of this rank's slice
  comm::Work work_;
};

}  // namespace

std::unique_ptr<CompressedSum> start_random_sum(GradientBlock block, const SumContext& context,
                                                double ratio) {
  return std::make_unique<RandomSum>(std::move(block), context, ratio);
}

}  // namespace trireme::parallel
