#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/core/json.h"

namespace trireme::format::chat {

struct Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  // in the order in which keys came

struct Undefined {};
struct None {};

/// A value of the template language. Lists and dicts are shared, as in Python.
struct Value {
  std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<List>,
               std::shared_ptr<Dict>>
      it;
  int depth = 0;  ///< of lists and mappings in each other

  Value() = default;
  template <class T>
  requires(!std::is_same_v<std::remove_cvref_t<T>, Value>) Value(T value) : it(std::move(value)) {}
  // Throw Error if they are nested very deep, or hold very much text.
  static Value of(List list);
  static Value of(Dict dict);

  bool is_undefined() const { return std::holds_alternative<Undefined>(it); }
  bool is_none() const { return std::holds_alternative<None>(it); }
  const std::string* text() const { return std::get_if<std::string>(&it); }
  const List* list() const;
  Dict* dict() const;
  /// A whole number; true and false are 1 and 0.
  const int64_t* whole() const { return std::get_if<int64_t>(&it); }
  bool is_number() const { return whole() || std::holds_alternative<double>(it); }
  double number() const;
};

Value value_of(const core::Json& json);

/// In a message: "a string".
std::string_view kind_of(const Value& value);
bool is_true(const Value& value);
bool equal(const Value& a, const Value& b);

/// The value of a key; nullptr: there is none.
Value* find(const Dict& dict, std::string_view key);

/// As {{ }} prints it. Throws Error for lists and dicts, which Python prints in a way of its own.
std::string printed(const Value& value);

/// Python's json.dumps with ensure_ascii=False; indent 0: on one line.
std::string to_json(const Value& value, int indent);

}  // namespace trireme::format::chat
