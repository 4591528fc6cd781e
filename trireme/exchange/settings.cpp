#include "trireme/exchange/settings.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "trireme/config/value.h"
#include "trireme/core/error.h"

namespace trireme::exchange {

namespace {

std::string written(const core::Json* value) {
  if (value == nullptr) return "missing";
  return config::shortened(value->dump(-1, ' ', true, core::Json::error_handler_t::replace));
}

}  // namespace

Settings::Settings(core::Json json, std::string path)
    : json_(std::move(json)), path_(std::move(path)) {
  if (!json_.is_object()) throw ConfigError(fmt::format("{} is not a JSON object", path_));
}

const core::Json* Settings::find(const char* key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

const core::Json& Settings::must_find(const char* key) const {
  const core::Json* value = find(key);
  if (value == nullptr) throw ConfigError(fmt::format("{} has no '{}'", path_, key));
  return *value;
}

void Settings::refuse(const char* key, const std::string& sentence) const {
  throw ConfigError(fmt::format("{}: '{}' is {}, {}", path_, key, written(find(key)), sentence));
}

int64_t Settings::whole(const char* key, std::optional<int64_t> otherwise) const {
  if (otherwise && find(key) == nullptr) return *otherwise;
  const core::Json& value = must_find(key);
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() &&
       value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}))
    refuse(key, "not a whole number");
  return value.get<int64_t>();
}

double Settings::number(const char* key, std::optional<double> otherwise) const {
  if (otherwise && find(key) == nullptr) return *otherwise;
  const core::Json& value = must_find(key);
  if (!value.is_number()) refuse(key, "not a number");
  return value.get<double>();
}

bool Settings::truth(const char* key, bool otherwise) const {
  if (find(key) == nullptr) return otherwise;
  if (!find(key)->is_boolean()) refuse(key, "neither true nor false");
  return find(key)->get<bool>();
}

std::string Settings::text(const char* key, std::optional<std::string> otherwise) const {
  if (otherwise && find(key) == nullptr) return *otherwise;
  const core::Json& value = must_find(key);
  if (!value.is_string()) refuse(key, "not a string");
  return value.get<std::string>();
}

std::optional<Settings> Settings::inside(const char* key) const {
  const core::Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return Settings(*value, fmt::format("{}: '{}'", path_, key));
}

void Settings::need(const char* key, const core::Json& wanted) const {
  const core::Json* value = find(key);
  if (value != nullptr && *value != wanted)
    refuse(key, fmt::format("but only {} is built", wanted.dump()));
}

}  // namespace trireme::exchange
