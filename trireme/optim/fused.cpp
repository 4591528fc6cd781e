#include "trireme/optim/fused.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

namespace trireme::optim {

template <class Rate>
void fused_adamw(const FusedTensors& tensors, const AdamWOptions& options, const Rate& rate,
                 const FusedNumbers& numbers) {
  at::_fused_adamw_(tensors.parameters, tensors.gradients, tensors.first, tensors.second, {},
                    tensors.counts, rate, options.beta1, options.beta2,
                    numbers.decay ? options.weight_decay : 0, options.epsilon, /*amsgrad=*/false,
                    /*maximize=*/false, numbers.divisor, numbers.skip);
}

template <class Rate>
void fused_sgd(const FusedTensors& tensors, const SgdOptions& options, const Rate& rate,
               const FusedNumbers& numbers) {
  // Never the "first step": the momenta begin with zeros, which gives the same.
  at::_fused_sgd_(tensors.parameters, tensors.gradients, tensors.first,
                  numbers.decay ? options.weight_decay : 0, options.momentum, rate,
                  /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false,
                  /*is_first_step=*/false, numbers.divisor, numbers.skip);
}

template void fused_adamw(const FusedTensors&, const AdamWOptions&, const double&,
                          const FusedNumbers&);
template void fused_adamw(const FusedTensors&, const AdamWOptions&, const at::Tensor&,
                          const FusedNumbers&);
template void fused_sgd(const FusedTensors&, const SgdOptions&, const double&, const FusedNumbers&);
template void fused_sgd(const FusedTensors&, const SgdOptions&, const at::Tensor&,
                        const FusedNumbers&);

}  // namespace trireme::optim
