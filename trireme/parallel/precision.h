#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/comm/dtype.h"
#include "trireme/layout/reduction.h"
#include "trireme/nn/parameters.h"

namespace trireme::parallel {

using comm::scalar_type_of;

/// The dtypes of a parameter. One that is not trained needs no master: it is rounded once.
inline ParameterDtypes dtypes_of(const nn::Parameter& parameter, const Precision& precision) {
  ParameterDtypes dtypes =
      precision.dtypes_of(parameter.name, comm::dtype_of(parameter.tensor.scalar_type()));
  if (!parameter.tensor.requires_grad()) dtypes.master = dtypes.compute;
  return dtypes;
}

/// An input of a model, on the device and, if its elements are real numbers, in the dtype that
/// layers compute in.
inline at::Tensor as_input(const at::Tensor& x, const at::Device& device,
                           const Precision& precision) {
  const bool rounds = x.is_floating_point() && precision.dtypes.has_value();
  return x.to(device, rounds ? scalar_type_of(precision.dtypes->compute) : x.scalar_type());
}

}  // namespace trireme::parallel
