#pragma once

#include "trireme/nn/layer.h"

namespace trireme::nn {

/// From now on the layer keeps only its input for backward, and computes again what lies between.
///
///   forward    x ──> y           nothing else is kept
///   backward   x ──> y', y' == y bit for bit, then backward through y'
///
/// Dropout gives the same mask again: it depends on the Flow's Where, which is kept. May be nested.
void recompute(LayerImpl& layer);

}  // namespace trireme::nn
