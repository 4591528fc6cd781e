#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "trireme/nn/exchange.h"
#include "trireme/nn/token_rows.h"

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
  /// How many tokens each expert of this rank has.
  std::vector<int64_t> counts;

  /// [received, width]: those of the first expert of this rank, then those of the next ... Waits
  /// for tokens that are in flight.
  const at::Tensor& tokens();

  /// Sends something else of each token to its experts, such as its position: [tokens, ...] becomes
  /// [received, ...]. Differentiable. Collective.
  at::Tensor send(const at::Tensor& per_token) const;

  /// Sends the experts' results, in the order of `tokens`, back to the ranks of the tokens. Returns
  /// for each token the sum of its experts' results, multiplied by `weights`, [tokens, choices].
  /// Differentiable. Collective.
  at::Tensor combine(const at::Tensor& results, const at::Tensor& weights);
  /// The same in two halves, so that something else can be computed while the results travel.
  void start_combine(const at::Tensor& results);
  at::Tensor finish_combine(const at::Tensor& weights);

 private:
  friend Dispatched dispatch(const at::Tensor& x, const at::Tensor& choice, int64_t experts,
                             const comm::Communicator* group);
  friend Dispatched start_dispatch(const at::Tensor& x, const at::Tensor& choice, int64_t experts,
                                   const comm::Communicator* group);
  static Dispatched routed(const at::Tensor& x, const at::Tensor& choice, int64_t experts,
                           const comm::Communicator* group);

  TokenOrder order_;                              // of what is sent
  std::optional<functional::ExchangeRows> rows_;  // of several ranks
  TokenOrder sorted_, unsorted_;  // of what is received, where rows_ is set: by expert, by rank
  at::Tensor tokens_, came_;
  std::optional<functional::ExchangeInFlight> coming_, going_;
};

/// Sends tokens [tokens, width] to the ranks of the experts that they chose, [tokens, choices] of
/// all `experts` or kDropped. `group`: the ranks among which the experts are dealt; nullptr: this
/// one only. A rank may have no tokens, and an expert may get none. Differentiable. Collective.
///
///   Dispatched sent = dispatch(x, choice, experts, group);
///   y = sent.combine(my_experts(sent.tokens(), sent.counts), weights);
Dispatched dispatch(const at::Tensor& x, const at::Tensor& choice, int64_t experts,
                    const comm::Communicator* group);
/// The same, but the tokens are in flight until `tokens()`.
Dispatched start_dispatch(const at::Tensor& x, const at::Tensor& choice, int64_t experts,
                          const comm::Communicator* group);

}  // namespace trireme::nn
