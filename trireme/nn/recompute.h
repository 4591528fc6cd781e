#pragma once

#include "trireme/nn/layer.h"

namespace trireme::nn {

/// Makes a layer keep only its input for backward, which recomputes the rest (activation
/// checkpointing).
///
///   forward    x ──> y           only x is kept
///   backward   x ──> y', y' == y bit for bit, then backward through y'
///
/// Dropout gives the same mask both times, because it depends on the Flow's Where, which is kept.
/// While it is recomputed, the layer's buffers have the values of the first time, and afterwards
/// those that they had before: running statistics count a batch once. If neither the input nor a
/// parameter requires a gradient, nothing is recomputed. May be nested. Throws on a gradient of a
/// gradient.
void recompute(LayerImpl& layer);

/// The same for a single call that uses these layers. A pipeline that has cut a recomputed layer in
/// the middle calls it for each part.
Flow recomputed(Flow in, const FlowFunction& call,
                const std::vector<std::shared_ptr<LayerImpl>>& layers);

}  // namespace trireme::nn
