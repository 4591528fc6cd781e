#pragma once

#include "trireme/config/config.h"

namespace trireme::config {

/// Fills in the defaults that depend on other keys: model.kv_heads and model.ffn where they are 0.
Config resolved(Config config);

/// Throws ConfigError, a sentence with names and numbers, unless every key is in its range and the
/// keys fit each other. Expects a resolved configuration.
void validate(const Config& config);

/// The same for the keys of one section.
void validate(const Precision& precision);
void validate(const Sync& sync);

/// What training refuses, but `trireme eval` does not: evaluation without any data for it.
void refuse_evaluation_without_data(const Config& config);

/// Throws ConfigError for the first key that asks for what this version does not implement yet.
void refuse_unbuilt(const Config& config);

}  // namespace trireme::config
