#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace trireme::config {

/// One value inside a table of a list of tables.
using Cell = std::variant<bool, int64_t, double, std::string>;
struct Field {
  std::string name;
  Cell value;
  bool operator==(const Field&) const = default;
};
/// A list of tables: the fields of each, as in [{match = "*.bias", lr = 0.1}].
using Row = std::vector<Field>;
using Rows = std::vector<Row>;

/// The value of a key.
using Value = std::variant<bool, int64_t, double, std::string, std::vector<double>,
                           std::vector<std::string>, Rows>;

/// The value as TOML, which reads back as exactly the same value: true, 3, 0.1, "a\nb", [0.9,
/// 0.95], [{match = "*.bias", lr = 0.1}].
std::string to_text(const Value& value);

/// The type of the value as messages call it: "a whole number", "a string" ...
std::string_view kind_of(const Value& value);

/// The cell as a value of its own.
Value value_of(Cell cell);

/// At most some 60 bytes of `text`, on one line, for a message.
std::string shortened(std::string_view text);

}  // namespace trireme::config
