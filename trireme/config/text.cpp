#include "trireme/config/text.h"

#include <fmt/format.h>

#include "trireme/config/keys.h"

namespace trireme::config {

namespace {

/// The weights, the samples and their order depend on these.
bool must_match(const Key& key) {
  return key.section() == "model" || key.section() == "data" || key.name == "run.seed" ||
         key.name == "batch.global";
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
    if (was != is)
      return fmt::format("{} was {} when it was saved and is {} now", key.name, to_text(was),
                         to_text(is));
  }
  return {};
}

}  // namespace trireme::config
