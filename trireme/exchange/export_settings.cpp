#include "trireme/exchange/export_settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/config/load.h"
#include "trireme/core/error.h"
#include "trireme/exchange/carried.h"
#include "trireme/exchange/hf_folder.h"
#include "trireme/format/file.h"
#include "trireme/format/tokenizer.h"

namespace trireme::exchange {

namespace {

bool has_tokenizer(const std::string& folder) {
  return !folder.empty() && std::ranges::any_of(kTokenizerNames, [&](std::string_view name) {
    return format::is_file(folder + "/" + std::string(name));
  });
}

/// data.tokenizer may be the file itself.
std::string folder_of(const std::string& path) {
  if (!format::is_file(path)) return path;
  const auto slash = path.rfind('/');
  return slash == path.npos ? "." : path.substr(0, slash);
}

std::string torch_name(const std::string& dtype) {
  if (dtype == "BF16") return "bfloat16";
  return dtype == "F16" ? "float16" : dtype == "F64" ? "float64" : "float32";
}

/// The config.json of the model that this one was made from, if it is of the same kind.
core::Json carried_settings(const Carried& carried, const Family& family) {
  if (!carried.settings.empty()) {
    const Settings settings = read_settings(carried.settings);
    if (settings.text("model_type", "") == family.model_type) return settings.json();
  }
  return {{"bos_token_id", nullptr}, {"eos_token_id", nullptr}};
}

/// Says which token ends a text, for a tokenizer that comes without the folder of a model: ids for
/// the model, and, if there is none, a tokenizer_config.json for the tokenizer.
void name_end(const std::string& tokenizer, const std::string& to, core::Json& settings) {
  if (!format::is_file(tokenizer + "/tokenizer.json") &&
      !format::is_file(tokenizer + "/vocab.json"))
    return;  // of a kind that we only copy
  const auto loaded = format::load_tokenizer(tokenizer);
  const auto end = loaded->end_of_text();
  if (!end) return;
  settings["eos_token_id"] = *end;
  if (format::is_file(tokenizer + "/tokenizer_config.json")) return;
  const core::Json own = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                          {"eos_token", loaded->bytes_of(*end)}};
  format::write_file(to + "/tokenizer_config.json", own.dump(2) + "\n");
}

}  // namespace

config::Config config_of(const format::Checkpoint& saved) {
  const auto text = saved.index().extra.find("config");
  if (text == saved.index().extra.end() || !text->is_string())
    throw ConfigError(fmt::format(
        "{} does not say which model it is of; only those of `trireme train` and `ckpt import` do",
        saved.folder()));
  return config::parse(text->get<std::string>(), saved.folder());
}

std::vector<std::string> weight_names(const format::Checkpoint& saved) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : saved.index().tensors)
    if (name.find('/') == name.npos) names.push_back(name);
  return names;
}

Carried carried_for(const format::Checkpoint& saved, const config::Config& config,
                    const std::string& tokenizer) {
  if (!tokenizer.empty() && !has_tokenizer(folder_of(tokenizer)))
    throw ConfigError(fmt::format("--tokenizer {}: there is no tokenizer", tokenizer));
  Carried carried;
  for (const std::string& place : {saved.folder(), config.model.from})
    if (carried.settings.empty() && is_hf_folder(place)) carried.settings = place;
  for (const std::string& place :
       {tokenizer, saved.folder(), config.data.tokenizer, config.model.from})
    if (carried.tokenizer.empty() && has_tokenizer(folder_of(place)))
      carried.tokenizer = folder_of(place);
  const std::string& trained_with = config.data.tokenizer;
  if (carried.tokenizer.empty() && !trained_with.empty() && trained_with != "bytes")
    throw ConfigError(
        fmt::format("the model was trained with the tokenizer '{}', which is gone: "
                    "name it with --tokenizer",
                    trained_with));
  return carried;
}

void write_settings(const std::string& to, const Family& family, const config::Model& model,
                    const std::string& dtype, const Carried& carried) {
  core::Json settings = carried_settings(carried, family);
  if (!carried.tokenizer.empty() && carried.settings.empty())
    name_end(carried.tokenizer, to, settings);
  settings["architectures"] = {family.architecture};
  settings["model_type"] = family.model_type;
  settings.erase("dtype");
  settings["torch_dtype"] = torch_name(dtype);
  family.write(model, settings);
  format::write_file(to + "/" + kConfigName, settings.dump(2) + "\n");
  const std::string_view generation[] = {kGenerationName};
  if (carried.settings.empty() || copy_files(generation, carried.settings, to) == 0) {
    core::Json own = {{"_from_model_config", true}};
    for (const char* key : {"bos_token_id", "eos_token_id"})
      if (settings.contains(key) && !settings[key].is_null()) own[key] = settings[key];
    format::write_file(to + "/" + std::string(kGenerationName), own.dump(2) + "\n");
  }
  if (!carried.tokenizer.empty()) copy_files(kTokenizerNames, carried.tokenizer, to);
}

}  // namespace trireme::exchange
