#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/nn/layer.h"

namespace trireme::nn {

/// The sample and the position of each token of a Flow [rows, positions, ...], as [rows x
/// positions, 2]. Throws MisuseError, with the layer's name, if the Flow does not say where it
/// stands.
at::Tensor places_of(const LayerImpl& layer, const Flow& in);

}  // namespace trireme::nn
