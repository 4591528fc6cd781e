#pragma once

#include <optional>
#include <string>

#include "trireme/config/config.h"

namespace trireme::config {

/// Every key as a file that parse() reads back as exactly this configuration.
std::string to_toml(const Config& config);

/// Every key that does something, with its default, what it may be and what it means: a line or two
/// each, for --help.
std::string list_keys();

/// For resuming: the first key that has to be as it was saved and is not, with both values
/// (model.*, run.seed, batch.global, optim.kind, and whether SGD has momentum); nothing if all are.
/// The data is compared by what it holds, not by these keys. Expects two resolved configurations.
std::optional<std::string> first_difference(const Config& saved, const Config& now);

/// The same of what names the data; for checkpoints that do not know their data by what it holds.
std::optional<std::string> data_difference(const Config& saved, const Config& now);

}  // namespace trireme::config
