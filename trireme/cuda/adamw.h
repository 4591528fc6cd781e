#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::cuda {

/// A tensor that AdamW updates. All but `count` have the same number of elements, one after the
/// other in memory and in the same order.
struct AdamWTensor {
  at::Tensor master;           ///< float32
  at::Tensor gradient;         ///< float32 or 16 bits
  at::Tensor average, square;  ///< the moments, float32
  at::Tensor weight = {};      ///< the master is rounded into it; undefined: there is none
  at::Tensor count;            ///< of updates, this one included: one float32 number
  bool decays = true;
};

/// The numbers of an update. Those that change from step to step are on the device, so that the
/// host need not know them.
struct AdamWStep {
  double beta1, beta2, epsilon, decay;
  at::Tensor rate, divisor;  ///< float64
  at::Tensor skip;           ///< float32; not 0: change nothing. Undefined: 0
};

/// Updates all tensors by a few launches, each over up to 48 of them.
void adamw(const std::vector<AdamWTensor>& tensors, const AdamWStep& step);

}  // namespace trireme::cuda
