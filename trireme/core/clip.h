#pragma once

#include <algorithm>

namespace trireme::core {

constexpr double kClipEpsilon = 1e-6;  ///< as torch's clip_grad_norm_

/// What a gradient of this norm is divided by, so that its norm is at most `clip`; 0: no clipping.
inline double clip_divisor(double norm, double clip) {
  return clip > 0 ? std::max(1.0, (norm + kClipEpsilon) / clip) : 1;
}

}  // namespace trireme::core
