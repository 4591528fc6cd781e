#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trireme/config/config.h"
#include "trireme/core/json.h"
#include "trireme/data/dataset.h"

namespace trireme::train {

/// The dataset that the configuration trains on, and the one that it evaluates on. Throws
/// ConfigError, with the remedy, if a file is missing or is not a file of tokens.
std::shared_ptr<const data::Dataset> make_dataset(const config::Config& config);
std::shared_ptr<const data::Dataset> make_valid_dataset(const config::Config& config);

/// What a checkpoint stores about its training data.
core::Json facts_of(const data::Dataset& dataset);

/// A sentence with both facts if they differ; else nullopt.
std::optional<std::string> data_difference(const core::Json& saved, const core::Json& now);

}  // namespace trireme::train
