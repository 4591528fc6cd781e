#pragma once

#include <string>

#include "trireme/exchange/start.h"

namespace trireme::exchange {

/// Tells weights from others by a look at the names, dtypes and shapes of all tensors and at the
/// first 64 KiB of each: the same for a Hugging Face folder and for what `ckpt import` makes of it.
std::string fingerprint(const StartWeights& weights);

}  // namespace trireme::exchange
