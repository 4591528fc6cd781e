#pragma once

#include <memory>
#include <vector>

#include "trireme/nn/chain.h"

namespace trireme::nn {

/// Links of a chain one after the other. If backward recomputes them, only the input of the first
/// one is kept.
struct Segment {
  std::shared_ptr<const std::vector<Link>> links;
  bool recompute = false;

  Flow forward(Flow in) const;
};

/// Does the backward of a chain's last link follow its forward at once? Then that segment is not
/// recomputed: it would be in memory again right away.
enum class LastSegment : uint8_t { Kept, Recomputed };

/// Cuts links for `memory.recompute = "sqrt"` (Chen et al. 2016): of n layers one after the other,
/// every k-th keeps its input, where k is the square root of n, rounded up. Links that do not count
/// as layers keep what they need.
///
///   9 layers     embed │ h.0 h.1 h.2 │ h.3 h.4 h.5 │ h.6 h.7 h.8     │ head
///   kept               x             x             all, if it is Kept
///   backward     1. h.6 h.7 h.8   2. h.3 h.4 h.5 again from their x, then their backward   3. ...
std::vector<Segment> sqrt_segments(const std::vector<const Link*>& links, LastSegment last);

/// How many layers a segment has at most.
int64_t segment_length(int64_t layers);

}  // namespace trireme::nn
