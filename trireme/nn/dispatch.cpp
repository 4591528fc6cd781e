#include "trireme/nn/dispatch.h"

#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

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
  // Dropped choices sort behind all experts. A stable sort keeps the order of tokens, so that sums
  // over the tokens of an expert have the same order in every run.
  const at::Tensor flat = choice.reshape({-1});
  const at::Tensor keys = at::where(flat == kDropped, experts, flat);
  const at::Tensor host = at::bincount(keys, {}, experts + 1).cpu();
  core::check(host.size(0) == experts + 1, "dispatch: a token chose expert {}, but there are {}",
              host.size(0) - 1, experts);
  std::vector<int64_t> counts(host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + experts);
  const int64_t kept = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  sent.order_ = {at::argsort(keys, /*stable=*/true, /*dim=*/0).narrow(0, 0, kept).contiguous(),
                 x.size(0), choice.size(1)};
  if (ranks == 1) {
    sent.counts = std::move(counts);
    return sent;
  }
  const std::vector<int64_t> came = exchange_counts(counts, *group);
  sent.rows_ = {sums_of_parts(counts, ranks), sums_of_parts(came, ranks), *group};
  const auto local = static_cast<std::size_t>(experts / ranks);
  sent.counts.assign(local, 0);
  for (std::size_t i = 0; i < came.size(); ++i) sent.counts[i % local] += came[i];
  const at::Tensor sorted = at::tensor(by_expert(came, local), at::kLong).to(x.device());
  sent.sorted_ = {sorted, sorted.size(0), 1};
  sent.unsorted_ = {sent.sorted_.inverse, sorted.size(0), 1};
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
    sent.coming_.emplace(rows_of_tokens(x, sent.order_), *sent.rows_);
  else
    sent.tokens_ = rows_of_tokens(x, sent.order_);
  return sent;
}

at::Tensor Dispatched::send(const at::Tensor& per_token) const {
  const at::Tensor rows = rows_of_tokens(per_token, order_);
  if (!rows_) return rows;
  return rows_of_tokens(functional::exchange(rows, *rows_), sorted_);
}

const at::Tensor& Dispatched::tokens() {
  if (coming_) {
    tokens_ = rows_of_tokens(coming_->wait(), sorted_);
    coming_.reset();
  }
  return tokens_;
}

at::Tensor Dispatched::combine(const at::Tensor& results, const at::Tensor& weights) {
  core::check(results.size(0) == tokens().size(0),
              "combine: the experts gave {} rows for {} tokens", results.size(0), tokens().size(0));
  if (!rows_) return weighted_rows(results, weights, order_);
  return weighted_rows(functional::exchange(rows_of_tokens(results, unsorted_),
                                            {rows_->received, rows_->sent, rows_->group}),
                       weights, order_);
}

void Dispatched::start_combine(const at::Tensor& results) {
  if (rows_)
    going_.emplace(rows_of_tokens(results, unsorted_),
                   functional::ExchangeRows{rows_->received, rows_->sent, rows_->group});
  else
    came_ = results;
}

at::Tensor Dispatched::finish_combine(const at::Tensor& weights) {
  if (going_) came_ = going_->wait();
  going_.reset();
  return weighted_rows(came_, weights, order_);
}

}  // namespace trireme::nn
