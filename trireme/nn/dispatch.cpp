#include "trireme/nn/dispatch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "trireme/core/error.h"

namespace trireme::nn {

namespace {

/// Sums of `parts` equal parts of the rows.
comm::Rows sums_of_parts(const std::vector<int64_t>& rows, int parts) {
  comm::Rows sums(static_cast<std::size_t>(parts), 0);
  const std::size_t each = rows.size() / sums.size();
  for (std::size_t i = 0; i < rows.size(); ++i) sums[i / each] += rows[i];
  return sums;
}

/// How many rows each rank sends for each of this rank's experts, [ranks, experts] flattened.
std::vector<int64_t> exchange_counts(const std::vector<int64_t>& mine,
                                     const comm::Communicator& group) {
  at::Tensor in = at::tensor(mine, at::kLong).view({group.size(), -1});
  at::Tensor out = at::empty_like(in);
  group.all_to_all(out, in).wait();
  return {out.data_ptr<int64_t>(), out.data_ptr<int64_t>() + out.numel()};
}

/// What comes is sorted by (rank, expert); experts want it by (expert, rank):
///
///   received   r0: e0 e0 e1 | r1: e0 e1 e1        rows 0 1 2 3 4 5
///   sorted     e0: 0 1 3    | e1: 2 4 5
std::vector<int64_t> by_expert(const std::vector<int64_t>& counts, std::size_t experts) {
  std::vector<int64_t> begins(counts.size(), 0);
  std::partial_sum(counts.begin(), counts.end() - 1, begins.begin() + 1);
  std::vector<int64_t> rows;
  rows.reserve(static_cast<std::size_t>(begins.back() + counts.back()));
  for (std::size_t expert = 0; expert < experts; ++expert)
    for (std::size_t i = expert; i < counts.size(); i += experts)
      for (int64_t row = 0; row < counts[i]; ++row) rows.push_back(begins[i] + row);
  return rows;
}

}  // namespace

Dispatched Dispatched::routed(const at::Tensor& x, const at::Tensor& choice, int64_t experts,
                              const comm::Communicator* group) {
  const int ranks = group != nullptr ? group->size() : 1;
  core::check(x.dim() == 2 && choice.dim() == 2 && choice.size(0) == x.size(0),
              "dispatch: tokens [{}] and choices [{}] must be of as many tokens",
              fmt::join(x.sizes(), ", "), fmt::join(choice.sizes(), ", "));
  core::check(experts % ranks == 0, "dispatch: {} experts cannot be dealt evenly to {} ranks",
              experts, ranks);
  Dispatched sent;
  sent.num_tokens_ = x.size(0);
  sent.choices_ = choice.size(1);
  // Dropped choices sort behind all experts. A stable sort keeps the order of tokens, so that sums
  // over the tokens of an expert have the same order in every run.
  const at::Tensor flat = choice.reshape({-1});
  const at::Tensor keys = at::where(flat == kDropped, experts, flat);
  const at::Tensor host = at::bincount(keys, {}, experts + 1).cpu();
  core::check(host.size(0) == experts + 1, "dispatch: a token chose expert {}, but there are {}",
              host.size(0) - 1, experts);
  std::vector<int64_t> counts(host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + experts);
  const int64_t kept = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  sent.order_ = at::argsort(keys, /*stable=*/true, /*dim=*/0).narrow(0, 0, kept);
  if (ranks == 1) {
    sent.counts = std::move(counts);
    return sent;
  }
  const std::vector<int64_t> came = exchange_counts(counts, *group);
  sent.rows_ = {sums_of_parts(counts, ranks), sums_of_parts(came, ranks), *group};
  const auto local = static_cast<std::size_t>(experts / ranks);
  sent.counts.assign(local, 0);
  for (std::size_t i = 0; i < came.size(); ++i) sent.counts[i % local] += came[i];
  sent.sorted_ = at::tensor(by_expert(came, local), at::kLong).to(x.device());
  sent.unsorted_ = at::empty_like(sent.sorted_);
  sent.unsorted_.index_copy_(0, sent.sorted_,
                             at::arange(sent.sorted_.size(0), sent.sorted_.options()));
  return sent;
}

Dispatched dispatch(const at::Tensor& x, const at::Tensor& choice, int64_t experts,
                    const comm::Communicator* group) {
  Dispatched sent = Dispatched::routed(x, choice, experts, group);
  sent.tokens_ = sent.send(x);
  return sent;
}

Dispatched start_dispatch(const at::Tensor& x, const at::Tensor& choice, int64_t experts,
                          const comm::Communicator* group) {
  Dispatched sent = Dispatched::routed(x, choice, experts, group);
  if (sent.rows_)
    sent.coming_.emplace(sent.in_order(x), *sent.rows_);
  else
    sent.tokens_ = sent.in_order(x);
  return sent;
}

at::Tensor Dispatched::in_order(const at::Tensor& per_token) const {
  return per_token.index_select(0, at::div(order_, choices_, /*rounding_mode=*/"floor"));
}

at::Tensor Dispatched::send(const at::Tensor& per_token) const {
  const at::Tensor rows = in_order(per_token);
  if (!rows_) return rows;
  return functional::exchange(rows, *rows_).index_select(0, sorted_);
}

const at::Tensor& Dispatched::tokens() {
  if (coming_) {
    tokens_ = coming_->wait().index_select(0, sorted_);
    coming_.reset();
  }
  return tokens_;
}

at::Tensor Dispatched::combine(const at::Tensor& results, const at::Tensor& weights) {
  core::check(results.size(0) == tokens().size(0),
              "combine: the experts gave {} rows for {} tokens", results.size(0), tokens().size(0));
  if (!rows_) return weighted(results, weights);
  return weighted(functional::exchange(results.index_select(0, unsorted_),
                                       {rows_->received, rows_->sent, rows_->group}),
                  weights);
}

void Dispatched::start_combine(const at::Tensor& results) {
  if (rows_)
    going_.emplace(results.index_select(0, unsorted_),
                   functional::ExchangeRows{rows_->received, rows_->sent, rows_->group});
  else
    came_ = results;
}

at::Tensor Dispatched::finish_combine(const at::Tensor& weights) {
  if (going_) came_ = going_->wait();
  going_.reset();
  return weighted(came_, weights);
}

at::Tensor Dispatched::weighted(const at::Tensor& came, const at::Tensor& weights) const {
  const at::Tensor scale = weights.reshape({-1}).index_select(0, order_);
  // In 16 bits the products are added in the dtype of the weights.
  const at::Tensor parts = came.to(scale.scalar_type()) * scale.unsqueeze(1);
  return at::zeros({num_tokens_, came.size(1)}, parts.options())
      .index_add(0, at::div(order_, choices_, "floor"), parts)
      .to(came.scalar_type());
}

}  // namespace trireme::nn
