#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "trireme/optim/optimizer.h"

namespace trireme::optim {

/// The tensors of one call of a fused kernel: of each parameter one, in the same order.
struct FusedTensors {
  std::vector<at::Tensor> parameters, gradients;
  std::vector<at::Tensor> first, second;  ///< moments of AdamW; momenta of SGD, or none
  std::vector<at::Tensor> counts;         ///< AdamW: updates, with this one; float32
};

/// How the gradients are taken. Torch's kernels take the divisor as a float: gradients of float64
/// must be divided before.
struct FusedNumbers {
  bool decay = true;
  std::optional<at::Tensor> divisor = {}, skip = {};  ///< float32
};

/// torch.optim.AdamW(fused=True) and SGD(fused=True). `Rate`: a double, or on a GPU a tensor.
template <class Rate>
void fused_adamw(const FusedTensors& tensors, const AdamWOptions& options, const Rate& rate,
                 const FusedNumbers& numbers);
template <class Rate>
void fused_sgd(const FusedTensors& tensors, const SgdOptions& options, const Rate& rate,
               const FusedNumbers& numbers);

}  // namespace trireme::optim
