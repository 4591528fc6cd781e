// PowerSGD (Vogels, Karimireddy, Jaggi 2019): the gradient of a weight is a matrix M [n, m], and
// two thin factors say most of it. One step of the power method a step, from where the last one
// ended (warm start):
//
//   P = M Q            on every rank            [n, r]   ── all-reduce ──>  sum of P
//   P = orthogonal(P)  the same on every rank
//   Q = M^T P          on every rank            [m, r]   ── all-reduce ──>  sum of Q
//   the sum of M is about P Q^T                 and Q is where the next step begins
//
// The residual of a rank is what it did not send: M - P (M^T P)^T. (torch's powerSGD_hook keeps
// M - P Q^T / R with the mean of all ranks instead. The sums over ranks of both are the same, and
// only these sums reach P and Q, so both train alike.)
//
// Where rows are scattered every rank computes the factors of the whole, and takes its rows.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "trireme/parallel/compressed_sum.h"
#include "trireme/parallel/orthogonal.h"

namespace trireme::parallel {

namespace {

class LowRankSum final : public CompressedSum {
 public:
  LowRankSum(GradientBlock block, const SumContext& context, LowRankFactors& factors)
      : block_(std::move(block)),
        context_(context),
        factors_(factors),
        packed_(block_, {context.first.rank(), context.first.size()},
                PackedBlock::Order::ByMember) {
    all_ = packed_.gradients();
    if (context_.residuals != nullptr) all_.add_(packed_.residuals(*context_.residuals));
    std::vector<at::Tensor> products;
    for (const auto& part : packed_.parts())
      products.push_back(at::mm(matrix(part), factors_.now(*part.place)).view({-1}));
    p_ = at::cat(products);
    work_ = context_.first.all_reduce(p_);
  }

  bool arrived() const override { return work_.done(); }

  void start_second() override {
    work_.wait();
    std::vector<at::Tensor> products;
    int64_t at = 0;
    for (const auto& part : packed_.parts()) {
      const at::Tensor p = factor(p_, at, *part.place, matrix_of(*part.place).first);
      make_orthogonal(p);
      products.push_back(at::mm(matrix(part).t(), p));
      if (context_.residuals != nullptr) matrix(part).sub_(at::mm(p, products.back().t()));
    }
    if (context_.residuals != nullptr) packed_.keep(*context_.residuals, all_);
    for (at::Tensor& one : products) one = one.reshape({-1});
    q_ = at::cat(products);
    work_ = context_.second.all_reduce(q_);
  }

  void finish() override {
    work_.wait();
    int64_t at_p = 0, at_q = 0;
    for (const auto& part : packed_.parts()) {
      const auto [rows, columns] = matrix_of(*part.place);
      const at::Tensor p = factor(p_, at_p, *part.place, rows),
                       q = factor(q_, at_q, *part.place, columns);
      at::Tensor sum = matrix(part);
      at::mm_out(sum, p, q.t());
      factors_.set_next(*part.place, q.clone());
    }
    packed_.put(all_);
  }

 private:
  /// The packed gradient of a member as a matrix; the sum takes its place.
  at::Tensor matrix(const PackedBlock::Part& part) const {
    const auto [rows, columns] = matrix_of(*part.place);
    return all_.narrow(0, part.begin, part.numel()).view({rows, columns});
  }

  /// The next factor of a list, with so many rows.
  at::Tensor factor(const at::Tensor& list, int64_t& at, const GradientPlace& place,
                    int64_t rows) const {
    const int64_t rank = factors_.rank_of(place), numel = rows * rank;
    at += numel;
    return list.narrow(0, at - numel, numel).view({rows, rank});
  }

  GradientBlock block_;  // keeps its memory
  SumContext context_;
  LowRankFactors& factors_;
  PackedBlock packed_;
  at::Tensor all_, p_, q_;
  comm::Work work_;
};

}  // namespace

std::unique_ptr<CompressedSum> start_low_rank_sum(GradientBlock block, const SumContext& context,
                                                  LowRankFactors& factors) {
  return std::make_unique<LowRankSum>(std::move(block), context, factors);
}

}  // namespace trireme::parallel
