#pragma once

#include "trireme/config/config.h"
#include "trireme/core/json.h"

namespace trireme::train {

/// What a checkpoint of adapters says of them, and of the weights that they belong to, which it
/// does not hold: from which folder these come, or by which seed they are drawn.
///
///   {"rank": 8, "scale": 2.0, "targets": ["*.attn.*"], "base": {"from": "runs/base"}}
core::Json facts_of_adapters(const config::Config& config);

}  // namespace trireme::train
