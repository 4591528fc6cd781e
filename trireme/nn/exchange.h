#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "trireme/comm/communicator.h"

namespace trireme::nn::functional {

/// Rows that travel between the ranks of a group, in forward and, the same way back, in backward.
struct ExchangeRows {
  comm::Rows sent;      ///< to each rank, one after the other in the tensor; any may be 0
  comm::Rows received;  ///< from each rank, likewise
  comm::Communicator group;
};

/// An exchange that was started, so that something else can be computed meanwhile. In backward the
/// gradients start to travel where forward waited, and are waited for where forward started:
///
///   forward    start a   start b   wait a   compute a   wait b   compute b
///                                           (b travels)
///   backward   wait a   wait b   start a   of a   start b   of b        from right to left
///                                          (b's gradients travel)
class ExchangeInFlight {
 public:
  ExchangeInFlight(const at::Tensor& x, const ExchangeRows& rows);
  /// Waits for the rows that come to this rank.
  at::Tensor wait();

 private:
  struct Travel;
  struct TravelBox;
  struct Start;
  struct Wait;
  std::shared_ptr<Travel> travel_;
  at::Tensor out_;
};

/// Sends `sent[r]` rows of x to rank r and returns the rows that came, by the rank that sent them.
/// In backward the gradients travel the same way back. In a group of one rank it returns its
/// argument. Differentiable any number of times. Collective, also in backward.
at::Tensor exchange(const at::Tensor& x, const ExchangeRows& rows);

}  // namespace trireme::nn::functional
