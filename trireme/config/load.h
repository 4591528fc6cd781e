#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "trireme/config/config.h"

namespace trireme::config {

/// Reads the file, applies the overrides, resolves and validates. An override is KEY=VALUE, the
/// value as TOML, else as a bare string; the last of several wins; one without effect is an error.
/// Throws ConfigError, one sentence that begins with the position (file:line:column, or the
/// override) of the first mistake, or one that names what this version does not implement yet.
Config load(const std::string& path, std::span<const std::string> overrides = {});

/// The text of the file, of at most 16 MiB. Throws ConfigError where it cannot be read.
std::string read_text(const std::string& path);

/// Sets keys that were not given, from elsewhere; `given` has the names of those that were. Called
/// when everything is read, before it is resolved and validated.
using Completion = std::function<void(Config& config, const std::set<std::string_view>& given)>;

/// Parses, resolves and validates a text in the same way, but lets it ask for what this version
/// does not implement: `refuse_unbuilt` says so. `file_name` is for messages.
Config parse(std::string_view toml_text, std::string_view file_name,
             std::span<const std::string> overrides = {}, const Completion& complete = {});

}  // namespace trireme::config
