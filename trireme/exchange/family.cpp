#include "trireme/exchange/family.h"

#include <fmt/format.h>

#include "trireme/config/keys.h"
#include "trireme/config/validate.h"
#include "trireme/core/error.h"

namespace trireme::exchange {

namespace {

const Family* const kAll[] = {&gpt2(), &llama(), &qwen2(), &mixtral()};

std::string known_types() {
  std::string all;
  for (const Family* one : kAll)
    all += fmt::format("{}{}", all.empty() ? "" : ", ", one->model_type);
  return all;
}

}  // namespace

const Family& family_of(const Settings& settings) {
  const std::string type = settings.text("model_type");
  for (const Family* one : kAll)
    if (type == one->model_type) return *one;
  settings.refuse("model_type", fmt::format("which is not built; there are {}", known_types()));
}

const Family& family_of(const config::Model& model) {
  if (model.kind == "gpt") return gpt2();
  if (model.kind == "llama") return model.qkv_bias ? qwen2() : llama();
  if (model.kind == "moe-llama") return mixtral();
  throw ConfigError(fmt::format(
      "model.kind = \"{}\" has no counterpart in Hugging Face's transformers; gpt, llama and "
      "moe-llama have",
      model.kind));
}

config::Model model_of(const Family& family, const Settings& settings) {
  config::Config config;
  config.model = family.read(settings);
  const auto fail = [&](std::string_view sentence) {
    throw ConfigError(
        fmt::format("{} describes a model that cannot be: {}", settings.path(), sentence));
  };
  for (const config::Key& key : config::keys())
    if (key.section() == "model" && key.name != "model.kind")
      if (const auto problem = config::problem_with(key, config::get(key, config))) fail(*problem);
  try {
    config = config::resolved(config);
    config::validate(config);
  } catch (const ConfigError& error) {
    fail(error.what());
  }
  return config.model;
}

}  // namespace trireme::exchange
