#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trireme/config/value.h"

namespace trireme::config {

/// A position in the file, from 1; 0 if the parser does not give one.
struct SourcePosition {
  unsigned line = 0, column = 0;
  auto operator<=>(const SourcePosition&) const = default;
};

/// A TOML value of a kind that no key has.
struct UnsupportedValue {
  std::string_view kind;  ///< "a table", "a date" ...
};
constexpr std::string_view kTableKind = "a table";

/// A field of one table of a list of tables.
struct TomlField {
  std::string name;
  std::variant<Cell, UnsupportedValue> found;
  SourcePosition name_at, value_at;
};
struct TomlTable {
  std::vector<TomlField> fields;  ///< in the order of the text
  SourcePosition at;
};
using TomlTables = std::vector<TomlTable>;

/// A list of tables, which is never empty, comes with the positions of its fields.
using TomlValue = std::variant<Value, UnsupportedValue, TomlTables>;

/// A section of a file, or a key of a section.
struct TomlEntry {
  std::string section;
  std::optional<std::string> key;  ///< none: the section itself, or a value outside any section
  TomlValue found;
  SourcePosition name_at, value_at;
};

/// The sections of a text and their keys, in the order of the text. Throws ConfigError with the
/// position where the text is not TOML.
std::vector<TomlEntry> read_toml(std::string_view text, std::string_view file_name);

/// The text as one TOML value; nothing if it is not one.
std::optional<TomlValue> read_toml_value(std::string_view text);

}  // namespace trireme::config
