#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "trireme/config/config.h"

namespace trireme::config {

/// Why the key changes nothing in this configuration, with the remedy; nothing if it does.
///
///     has no effect while data.kind = "markov"; set data.kind=tokens, or leave it out
std::optional<std::string> why_no_effect(std::string_view key, const Config& config);

}  // namespace trireme::config
