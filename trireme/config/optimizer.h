#pragma once

#include "trireme/config/config.h"

namespace trireme::config {

/// The optimizer that makes the updates of a run: that of its servers (sync.optimizer), or where
/// that says nothing optim.kind. Never `Same`.
ServerOptimizer updating_optimizer(const Config& config);

}  // namespace trireme::config
