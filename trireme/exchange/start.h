#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/config/config.h"
#include "trireme/format/load.h"
#include "trireme/format/tensor_source.h"

namespace trireme::exchange {

/// A run that starts from model.from. Its configuration need not repeat what the model is like:
///
///     a resumed run    model.* that were not given come from the checkpoint that it continues;
///                      model.from is not read
///     a new one        they come from model.from; those that were given must say the same, except
///                      that model.seq may be less, and that dropout is the run's own choice
///
/// A config::Completion. Throws ConfigError if model.from cannot be used.
void complete_model(config::Config& config, const std::set<std::string_view>& given);

/// Weights that a run can start from.
struct StartWeights {
  std::unique_ptr<format::TensorSource> source;
  std::vector<std::string> names;  ///< of all tensors; those of buffers begin with "buffer/"
  std::string what;                ///< "a Hugging Face folder", for people
};
/// Throws ConfigError for a checkpoint of adapters, which lacks the weights that they belong to.
void refuse_adapters(const format::Checkpoint& saved);

/// Those of config.model.from, for the model of `config`.
StartWeights open_weights(const config::Config& config);

}  // namespace trireme::exchange
