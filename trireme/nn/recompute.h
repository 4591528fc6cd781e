#pragma once

#include "trireme/nn/layer.h"

namespace trireme::nn {

/// From now on the layer keeps only its input for backward, and computes again what lies between.
///
///   forward    x ──> y           nothing else is kept
///   backward   x ──> y', y' == y bit for bit, then backward through y'
///
/// Dropout gives the same mask again: it depends on the Flow's Where, which is kept. Buffers have
/// the values that they had the first time, and are then what they were: running statistics count a
/// batch once. A layer of which nothing is trained, with an input that needs no gradient, is
/// computed once. May be nested. (A gradient of a gradient is refused.)
void recompute(LayerImpl& layer);

/// The same for one call, which uses these layers: a part of a layer that is recomputed, where a
/// pipeline has cut it inside.
Flow recomputed(Flow in, const LayerImpl::Call& call,
                const std::vector<std::shared_ptr<LayerImpl>>& layers);

}  // namespace trireme::nn
