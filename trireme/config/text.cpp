#include "trireme/config/text.h"

#include <fmt/format.h>

#include "trireme/config/keys.h"

namespace trireme::config {

namespace {

/// The weights, the order of samples and the state of the optimizer depend on these keys.
bool must_match(const Key& key) {
  return key.section() == "model" || key.section() == "lora" || key.name == "run.seed" ||
         key.name == "batch.global" || key.name == "optim.kind";
}

std::string difference(std::string_view key, const Value& was, const Value& is) {
  return fmt::format("{} was {}, is {} now", key, to_text(was), to_text(is));
}

}  // namespace

std::string to_toml(const Config& config) {
  std::string text;
  std::string_view section;
  for (const Key& key : keys()) {
    if (key.section() != section)
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", key.section());
    section = key.section();
    text += fmt::format("{} = {}\n", key.last_name(), to_text(get(key, config)));
  }
  return text;
}

std::string list_keys() {
  std::string text;
  for (const Key& key : keys()) {
    if (key.built == Built::Later) continue;
    const std::string wanted = wanted_value(key);
    text += fmt::format("{:<26} {:<14} {}\n", key.name, to_text(get(key, Config{})), key.meaning);
    if (!wanted.empty()) text += fmt::format("{:<41} {}\n", "", wanted);
  }
  return text;
}

std::optional<std::string> first_difference(const Config& saved, const Config& now) {
  for (const Key& key : keys()) {
    if (!must_match(key)) continue;
    const Value was = get(key, saved), is = get(key, now);
    if (was != is) return difference(key.name, was, is);
  }
  if (saved.sync.optimizer != now.sync.optimizer &&
      (saved.sync.on_servers() || now.sync.on_servers())) {
    const auto kind = [](const Config& config) {
      if (config.sync.optimizer != ServerOptimizer::Same)
        return std::string(to_string(config.sync.optimizer));
      return std::string(to_string(config.optim.kind));
    };
    if (kind(saved) != kind(now))
      return difference("the optimizer (sync.optimizer, optim.kind)", kind(saved), kind(now));
  }
  // Without momentum SGD has no state.
  if (now.optim.kind == OptimizerKind::Sgd &&
      (saved.optim.momentum == 0) != (now.optim.momentum == 0))
    return difference("optim.momentum", saved.optim.momentum, now.optim.momentum);
  return {};
}

std::optional<std::string> data_difference(const Config& saved, const Config& now) {
  for (const Key& key : keys()) {
    const bool names_it = key.name == "data.kind" || key.name == "data.path" ||
                          key.name == "data.samples" || key.name == "data.classes";
    const Value was = get(key, saved), is = get(key, now);
    if (names_it && was != is) return difference(key.name, was, is);
  }
  return {};
}

}  // namespace trireme::config
