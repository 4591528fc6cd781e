#pragma once

#include "trireme/optim/optimizer.h"
#include "trireme/ps/rule.h"

namespace trireme::ps {

/// The optimizers of a run without servers, as rules: the same kernels, so the same bits. Their
/// learning rate is 1; a push brings the rate of its step.
RulePtr make_fused_adamw(const optim::AdamWOptions& options);
RulePtr make_fused_sgd(const optim::SgdOptions& options);

}  // namespace trireme::ps
