#pragma once

#include "trireme/exchange/settings.h"
#include "trireme/config/config.h"

namespace trireme::exchange {

/// The rotary positions of a config.json, of transformers 5 ("rope_parameters") or before
/// ("rope_theta", "rope_scaling"). Throws ConfigError for a kind that is not built. Both need
/// model.seq.
void read_rope(const Settings& settings, config::Model& model);

/// Writes them in the older form, which every version reads.
void write_rope(const config::Model& model, core::Json& settings);

}  // namespace trireme::exchange
