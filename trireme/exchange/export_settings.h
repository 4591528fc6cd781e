#pragma once

#include <string>
#include <vector>

#include "trireme/exchange/family.h"
#include "trireme/format/load.h"

namespace trireme::exchange {

/// The configuration of the run that saved the checkpoint. Throws ConfigError if it says none.
config::Config config_of(const format::Checkpoint& saved);

/// The names of its weights, without what belongs to the optimizer or to replicas.
std::vector<std::string> weight_names(const format::Checkpoint& saved);

/// Where files come from that are copied into an export; empty: there are none.
struct Carried {
  std::string settings;   ///< a folder with the config.json of the model that it was made from
  std::string tokenizer;  ///< a folder with a tokenizer
};
/// Looks in `tokenizer` if it is given, else beside the checkpoint (an import keeps them there), at
/// data.tokenizer and in model.from.
Carried carried_for(const format::Checkpoint& saved, const config::Config& config,
                    const std::string& tokenizer);

/// Writes config.json, generation_config.json and the tokenizer's files. What the model does not
/// determine, such as the id of the end of a text, comes from `carried`.
void write_settings(const std::string& to, const Family& family, const config::Model& model,
                    const std::string& dtype, const Carried& carried);

}  // namespace trireme::exchange
