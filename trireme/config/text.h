#pragma once

#include <optional>
#include <string>

#include "trireme/config/config.h"

namespace trireme::config {

/// Every key as a file that parse() reads back as exactly this configuration.
std::string to_toml(const Config& config);

/// For --help: every implemented key with its default, its meaning and its limits, in one or two
/// lines.
std::string list_keys();

/// For resuming: the first key that differs from the saved one and must not, with both values
/// (model.*, run.seed, batch.global, optim.kind, and whether SGD has momentum); nothing if none
/// does. The data is compared by its content instead. Expects two resolved configurations.
std::optional<std::string> first_difference(const Config& saved, const Config& now);

/// The same for the keys that name the data; for checkpoints that do not record its content.
std::optional<std::string> data_difference(const Config& saved, const Config& now);

}  // namespace trireme::config
