#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/exchange/settings.h"
#include "trireme/exchange/table.h"

namespace trireme::exchange {

/// A kind of model that Hugging Face's transformers has, too.
struct Family {
  std::string_view kind;          ///< model.kind
  std::string_view model_type;    ///< in config.json
  std::string_view architecture;  ///< the class of transformers
  std::string_view base_prefix;   ///< of the names of tensors; files of the bare model lack it
  std::vector<TableRow> table;
  std::vector<std::string_view> ignored;  ///< tensors that hold no weights, such as masks
  /// The model of a config.json. Throws ConfigError for what this program does not compute.
  config::Model (*read)(const Settings& settings);
  /// Sets what a config.json says of the model.
  void (*write)(const config::Model& model, core::Json& settings);
  /// Throws ConfigError for what transformers does not compute.
  void (*refuse)(const config::Model& model);
};

const Family& gpt2();
const Family& llama();
const Family& qwen2();
const Family& mixtral();

/// That of a config.json. Throws ConfigError for others.
const Family& family_of(const Settings& settings);
/// That of a model of ours, or a ConfigError.
const Family& family_of(const config::Model& model);

/// The model that a config.json describes, with every number in its range.
config::Model model_of(const Family& family, const Settings& settings);

}  // namespace trireme::exchange
