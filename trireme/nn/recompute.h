#pragma once

#include "trireme/nn/layers.h"

namespace trireme::nn {

/// Whether the calls that come now are recomputed, where that changes from call to call: a pipeline
/// turns it off for micro-batches whose backward follows at once.
struct RecomputeSwitch {
  bool on = true;
};
using RecomputeSwitchPtr = std::shared_ptr<RecomputeSwitch>;

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
/// gradient. If there is a switch, only the calls are recomputed that come while it is on.
void recompute(LayerImpl& layer, RecomputeSwitchPtr when = nullptr);

/// The same for a single call that uses these layers. A pipeline that has cut a recomputed layer in
/// the middle calls it for each part.
Flow recomputed(Flow in, const FlowFunction& call,
                const std::vector<std::shared_ptr<LayerImpl>>& layers);

/// Is this thread computing the forward of a call again? What a call leaves behind, such as counts,
/// it has left the first time.
bool is_recomputing();

/// Makes layers whose output is cheap to compute again not keep it for backward: LayerNorm,
/// RmsNorm, SwiGlu, and Linear with a GELU. The Linear after them computes its input again when it
/// needs it; no matrix product and no attention runs twice.
///
///   forward    x ──norm──> y ──Linear──> z     x is kept for the norm, y is not kept
///   backward   x ──norm──> y', dW = dz^T y'    y' == y bit for bit, but for a GELU of a GPU in
///                                              16 bits, whose last bit may differ
///
/// If weights may be released before backward (FullySharded), norms keep copies of theirs. A
/// gradient of a gradient goes to x, and none to y itself.
void recompute_cheaply(torch::nn::Module& model, WeightsLater weights = WeightsLater::MayGo);

}  // namespace trireme::nn
