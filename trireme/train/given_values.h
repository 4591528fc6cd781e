#pragma once

#include <memory>

#include "trireme/config/config.h"
#include "trireme/nn/model.h"
#include "trireme/ps/job.h"

namespace trireme::train {

/// The first values of tables as model.from has them. Each server reads what lies in its own
/// ranges, when it needs that.
std::shared_ptr<const ps::FirstValues> given_values(const config::Config& config);

/// Throws ConfigError unless model.from has the tensors of this model, and no others.
void check_given_values(const config::Config& config, const nn::ModelImpl& whole);

}  // namespace trireme::train
