#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trireme/config/config.h"
#include "trireme/core/json.h"
#include "trireme/data/dataset.h"

namespace trireme::train {

/// What the configuration trains on, and what it is judged by. Throws ConfigError with the
/// remedy where a file is missing or no file of tokens.
std::shared_ptr<const data::Dataset> make_dataset(const config::Config& config);
std::shared_ptr<const data::Dataset> make_valid_dataset(const config::Config& config);

/// What a checkpoint knows of the data that it was trained on.
core::Json facts_of(const data::Dataset& dataset);

/// A sentence with both, where the facts of two datasets differ.
std::optional<std::string> data_difference(const core::Json& saved, const core::Json& now);

}  // namespace trireme::train
