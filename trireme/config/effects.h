#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "trireme/config/config.h"

namespace trireme::config {

/// Why the key has no effect in this configuration, and what to set instead; nothing if it has one.
///
///     has no effect while data.kind = "markov"; set data.kind=tokens, or leave it out
std::optional<std::string> why_no_effect(std::string_view key, const Config& config);

}  // namespace trireme::config
