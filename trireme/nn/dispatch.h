#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "trireme/comm/communicator.h"

namespace trireme::nn {

/// The expert of a token's choice that was dropped.
constexpr int64_t kDropped = -1;

/// Tokens at the ranks of their experts, and the way back. Rank r of the group has the experts of
/// the r-th of `group.size()` equal parts.
///
///   rank 0   tokens  a b c     a -> experts 0 2   b -> 0 1   c -> 3 0
///            sorted  a b c b | a c                by expert; experts 0, 1 are on this rank
///                        │       │  all_to_all
///            received        sorted by (expert, rank, token) ──> experts ──> the same way back
///            combine  y_a = weight * (y of expert 0) + weight * (y of expert 2) ...
class Dispatched {
 public:
  /// [received, width]: those of the first expert of this rank, then those of the next ...
  at::Tensor tokens;
  /// How many each expert of this rank has.
  std::vector<int64_t> counts;

  /// Sends something else of each token to its experts, such as its position: [tokens, ...] becomes
  /// [received, ...]. Differentiable. Collective.
  at::Tensor send(const at::Tensor& per_token) const;
  /// Sends the experts' results, in the order of `tokens`, back to the ranks of the tokens. Returns
  /// for each token the sum of its experts' results, multiplied by `weights`, [tokens, choices].
  /// Differentiable. Collective.
  at::Tensor combine(const at::Tensor& results, const at::Tensor& weights) const;

 private:
  friend Dispatched dispatch(const at::Tensor& x, const at::Tensor& choice, int64_t experts,
                             const comm::Communicator* group);
  at::Tensor back(const at::Tensor& results) const;

  int64_t num_tokens_ = 0, choices_ = 0;
  at::Tensor order_;  // of what is sent: which of tokens x choices it is
  comm::Rows sent_, received_;
  at::Tensor sorted_, unsorted_;  // of what is received; undefined: it is sorted already
  std::optional<comm::Communicator> group_;
};

/// Sends tokens [tokens, width] to the ranks of the experts that they chose, [tokens, choices] of
/// all `experts` or kDropped. `group`: the ranks among which the experts are dealt; nullptr: this
/// one only. A rank may have no tokens, and an expert may get none. Differentiable. Collective.
///
///   Dispatched sent = dispatch(x, choice, experts, group);
///   y = sent.combine(my_experts(sent.tokens, sent.counts), weights);
Dispatched dispatch(const at::Tensor& x, const at::Tensor& choice, int64_t experts,
                    const comm::Communicator* group);

}  // namespace trireme::nn
