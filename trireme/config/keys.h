#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trireme/config/config.h"
#include "trireme/config/value.h"

namespace trireme::config {

/// A member that a file writes as a string: a string, an enum, or a struct such as Balance.
struct TextMember {
  std::string (*get)(const Config&);
  void (*set)(Config&, const std::string&);  ///< the text is one that the key's Limits allow
};

struct Column;

/// A member that a file writes as a list of tables: a vector of structs.
struct TablesMember {
  Rows (*get)(const Config&);
  void (*set)(Config&, const Rows&);  ///< the rows are ones that the columns allow
  std::span<const Column> (*columns)();
  Built built = Built::Now;
};

/// Where a key lives in a Config; the alternatives stand in the order of Value's.
using Member = std::variant<bool& (*)(Config&), int64_t& (*)(Config&), double& (*)(Config&),
                            TextMember, std::vector<double>& (*)(Config&),
                            std::vector<std::string>& (*)(Config&), TablesMember>;

/// Which values a key may have, beyond its type. The bounds apply to each number of an array.
struct Limits {
  std::optional<double> at_least = {}, more_than = {}, at_most = {}, less_than = {};
  bool fits_int = false;                           ///< for sizes and degrees, which are used as int
  std::size_t count = 0;                           ///< numbers of an array
  std::vector<std::string_view> words = {};        ///< the only strings allowed; none: any string
  std::vector<std::string_view> later = {};        ///< strings that a later version will know
  bool not_empty = false;                          ///< for strings
  bool (*can_read)(const std::string&) = nullptr;  ///< for strings of some form; none: any
  std::string_view unreadable = {};                ///< the message where can_read says no
};

/// A field that the tables of a list may have.
struct Column {
  std::string_view name;
  std::string_view meaning;
  Cell kind;  ///< any value of the field's type
  bool needed = false;
  Limits limits = {};
};

/// One row of the table that reading, writing, suggestions and help are made from.
struct Key {
  std::string_view name;  ///< "section.key"
  Member member;
  std::string_view meaning;
  Limits limits = {};
  Built built = Built::Now;
  std::optional<TablesMember> or_tables =
      {};  ///< for a key that takes a string or a list of tables

  std::string_view section() const { return name.substr(0, name.find('.')); }
  std::string_view last_name() const { return name.substr(name.find('.') + 1); }
  bool wants_bool() const { return std::holds_alternative<bool& (*)(Config&)>(member); }
  /// Its lists of tables; null if it takes none.
  const TablesMember* tables() const;
};

/// The table, section by section, in the order in which files are written.
std::span<const Key> keys();

/// The sections' names in the order of the table.
std::span<const std::string_view> sections();

/// The key of that name, or null.
const Key* find_key(std::string_view name);

Value get(const Key& key, const Config& config);

/// `value` must have the key's type.
void set(const Key& key, Config& config, const Value& value);

/// What is wrong with the value for this key, as a sentence with name and value; nothing if it is
/// valid. `value` may have any type.
std::optional<std::string> problem_with(const Key& key, const Value& value);
/// The same for a field of a list of tables, which is called `name`: "optim.groups[0].lr".
std::optional<std::string> problem_with(const Column& column, std::string_view name,
                                        const Cell& cell);

/// The type that messages ask for: "a whole number", "true or false".
std::string_view wanted_kind(const Key& key);
std::string_view wanted_kind(const Column& column);

/// "at least 0 and less than 1", "one of "a", "b""; empty if any value of the type is valid.
std::string wanted_value(const Key& key);

/// The known key that is nearest to an unknown name, if one is near.
std::optional<std::string_view> nearest_key(std::string_view name);

}  // namespace trireme::config
