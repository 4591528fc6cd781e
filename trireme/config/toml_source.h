#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trireme/config/value.h"

namespace trireme::config {

/// From 1; 0 if the parser does not say.
struct Place {
  unsigned line = 0, column = 0;
  auto operator<=>(const Place&) const = default;
};

/// What TOML has and no key can be.
struct Other {
  std::string_view kind;  ///< "a table", "a date" ...
};
constexpr std::string_view kTableKind = "a table";

using Found = std::variant<Value, Other>;

/// A section, or a key in one, as a file has it.
struct Entry {
  std::string section;
  std::optional<std::string> key;  ///< none: the section itself, or a value that is in none
  Found found;
  Place name_place, value_place;
};

/// The sections of a text and their keys, in the order of the text. Throws ConfigError with the
/// place where the text is not TOML.
std::vector<Entry> read_toml(std::string_view text, std::string_view file_name);

/// The text as one TOML value; nothing if it is not one.
std::optional<Found> read_toml_value(std::string_view text);

}  // namespace trireme::config
