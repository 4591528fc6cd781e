#pragma once

#include <span>
#include <string>

#include "trireme/config/config.h"

namespace trireme::cli {

/// A configuration is read once, by `trireme`: a pipe (`<(...)`, /dev/stdin) can be read only once,
/// and a file may be edited while the ranks start. The ranks get its text as a sealed file in
/// memory, whose descriptor they inherit:
///
///     trireme ── read ── hand_over ── TRIREME_CONFIG_FD=7 ──> trireme-rank: load_config
///
/// Call it before the ranks are started. Throws Error where there is no memory for it.
void hand_over(const std::string& text);

/// In a rank: the configuration from the text that was handed over, or else from the file.
config::Config load_config(const std::string& path, std::span<const std::string> overrides);

}  // namespace trireme::cli
