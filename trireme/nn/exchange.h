#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/comm/communicator.h"

namespace trireme::nn::functional {

/// Sends `sent[r]` rows of x to rank r, one after the other, and returns the rows that came, by the
/// rank that sent them: `received[r]` of rank r. Any may be 0. In backward the gradients travel the
/// same way back. In a group of one rank it returns its argument. Collective, also in backward.
at::Tensor exchange(const at::Tensor& x, const comm::Rows& sent, const comm::Rows& received,
                    const comm::Communicator& group);

}  // namespace trireme::nn::functional
