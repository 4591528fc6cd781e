#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trireme/format/chat/value.h"

namespace trireme::format::chat {

/// The arguments of a call: in their order, and by name.
struct Arguments {
  std::vector<Value> listed;
  std::vector<std::pair<std::string, Value>> named{};

  /// The argument `index`, or `name`; undefined: not given.
  Value at(size_t index, std::string_view name) const;
};

// What expressions can call. Each throws Error with one sentence, without a line.
Value call_filter(const std::string& name, const Value& value, const Arguments& arguments);
bool call_test(const std::string& name, const Value& value, const Arguments& arguments);
Value call_method(const std::string& name, const Value& value, const Arguments& arguments);
Value call_function(const std::string& name, const Arguments& arguments);

Value binary(const std::string& sign, const Value& a, const Value& b);
Value member_of(const Value& value, const std::string& name);
Value item_of(const Value& value, const Value& item);
Value slice_of(const Value& value, const Value& begin, const Value& end, const Value& step);
/// The elements that a for goes over: of a list, the characters of a string, the keys of a mapping.
List elements_of(const Value& value);

/// `text` without the characters of `set` (white space if it is empty) at its ends.
enum class Ends { Both, Left, Right };
std::string stripped(std::string_view text, std::string_view set, Ends ends);

}  // namespace trireme::format::chat
