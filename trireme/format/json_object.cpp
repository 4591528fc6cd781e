#include "trireme/format/json_object.h"

#include <limits>
#include <utility>

#include "trireme/core/error.h"

namespace trireme::format {

core::Json parse_untrusted(std::string_view text, const std::string& path, int most_depth) {
  const auto bounded = [&](int depth, core::Json::parse_event_t, core::Json&) {
    if (depth > most_depth)
      throw CheckpointError(
          fmt::format("{}: its JSON is nested more than {} deep", path, most_depth));
    return true;
  };
  try {
    return core::Json::parse(text, bounded);
  } catch (const core::Json::exception& error) {
    const auto* wrong = dynamic_cast<const core::Json::parse_error*>(&error);
    throw CheckpointError(fmt::format("{} is damaged: it is not valid JSON{}", path,
                                      wrong ? fmt::format(" at byte {}", wrong->byte) : ""));
  }
}

JsonObject::JsonObject(const core::Json& json, const std::string& path, std::string where)
    : json_(json), path_(path), where_(std::move(where)) {
  if (!json.is_object()) fail("is not a JSON object");
}

void JsonObject::fail(std::string_view sentence) const {
  throw CheckpointError(fmt::format("{}: {} {}", path_, where_, sentence));
}

const core::Json& JsonObject::at(const char* key) const {
  const auto found = json_.find(key);
  if (found == json_.end()) fail(fmt::format("has no '{}'", key));
  return *found;
}

std::string JsonObject::text(const char* key) const {
  const core::Json& value = at(key);
  if (!value.is_string()) fail(fmt::format("has a '{}' that is not a string", key));
  return value.get<std::string>();
}

int64_t JsonObject::to_number(const core::Json& value, const char* key) const {
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()}
                        : value.is_number_integer() && value.get<int64_t>() >= 0;
  if (!fits) fail(fmt::format("has a '{}' that is not a size", key));
  return value.get<int64_t>();
}

int64_t JsonObject::number(const char* key) const {
  return to_number(at(key), key);
}

std::vector<int64_t> JsonObject::numbers(const char* key) const {
  const core::Json& list = at(key);
  if (!list.is_array()) fail(fmt::format("has a '{}' that is not a list", key));
  std::vector<int64_t> all;
  for (const core::Json& value : list) all.push_back(to_number(value, key));
  return all;
}

}  // namespace trireme::format
