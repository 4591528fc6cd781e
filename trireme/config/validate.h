#pragma once

#include "trireme/config/config.h"

namespace trireme::config {

/// The configuration with the defaults filled in that depend on other keys: model.kv_heads and
/// model.ffn where they are 0.
Config resolved(Config config);

/// Throws ConfigError, a sentence with names and numbers, unless every key is in its range and the
/// keys fit each other. Expects what resolved() gives.
void validate(const Config& config);

/// Throws ConfigError for the first key that asks for what this version does not have yet.
void refuse_unbuilt(const Config& config);

}  // namespace trireme::config
