#include "trireme/format/chat/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "trireme/core/error.h"

namespace trireme::format::chat {

namespace {

constexpr int kMostDeep = 64;  // functions here recurse, and a namespace may hold itself
constexpr size_t kMostTextBytes = 64 << 20;

const Value& element(const Value& value) {
  return value;
}
const Value& element(const Dict::value_type& entry) {
  return entry.second;
}

template <class Elements>
Value shared(Elements elements) {
  int depth = 0;
  size_t bytes = 0;
  for (const auto& each : elements) {
    depth = std::max(depth, element(each).depth);
    if (const auto* text = element(each).text()) bytes += text->size();
  }
  if (depth >= kMostDeep) throw Error(fmt::format("lists are nested more than {} deep", kMostDeep));
  if (bytes > kMostTextBytes) throw Error("a list holds more than 64 MiB of text");
  Value value(std::make_shared<Elements>(std::move(elements)));
  value.depth = depth + 1;
  return value;
}

}  // namespace

Value Value::of(List list) {
  return shared(std::move(list));
}
Value Value::of(Dict dict) {
  return shared(std::move(dict));
}

const List* Value::list() const {
  const auto* shared = std::get_if<std::shared_ptr<List>>(&it);
  return shared ? shared->get() : nullptr;
}

Dict* Value::dict() const {
  const auto* shared = std::get_if<std::shared_ptr<Dict>>(&it);
  return shared ? shared->get() : nullptr;
}

double Value::number() const {
  return whole() ? static_cast<double>(*whole()) : std::get<double>(it);
}

Value value_of(const core::Json& json) {
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX)
    return static_cast<double>(json.get<uint64_t>());
  if (json.is_number()) return json.get<int64_t>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    List list;
    for (const core::Json& each : json) list.push_back(value_of(each));
    return Value::of(std::move(list));
  }
  Dict dict;
  for (const auto& [key, each] : json.items()) dict.emplace_back(key, value_of(each));
  return Value::of(std::move(dict));
}

std::string_view kind_of(const Value& value) {
  static constexpr std::string_view names[] = {"undefined", "none",     "a boolean", "a number",
                                               "a number",  "a string", "a list",    "a mapping"};
  static_assert(std::size(names) == std::variant_size_v<decltype(value.it)>);
  return names[value.it.index()];
}

bool is_true(const Value& value) {
  if (const auto* flag = std::get_if<bool>(&value.it)) return *flag;
  if (value.is_number()) return value.number() != 0;
  if (const auto* text = value.text()) return !text->empty();
  if (const List* list = value.list()) return !list->empty();
  if (const Dict* dict = value.dict()) return !dict->empty();
  return false;
}

namespace {

/// `left`: comparisons until it is refused, because a list may hold another one twice, which holds
/// another one twice, ...
bool equal_at(const Value& a, const Value& b, int depth, int64_t& left) {
  if (depth > kMostDeep) throw Error(fmt::format("lists are nested more than {} deep", kMostDeep));
  if (--left < 0) throw Error("lists have too many elements to be compared");
  const auto as_number = [](const Value& value) {
    const auto* flag = std::get_if<bool>(&value.it);
    return flag ? Value(int64_t{*flag}) : value;
  };
  const auto same = [&](const Value& one, const Value& other) {
    return equal_at(one, other, depth + 1, left);
  };
  const Value x = as_number(a), y = as_number(b);
  if (x.is_number() && y.is_number())
    return x.whole() && y.whole() ? *x.whole() == *y.whole() : x.number() == y.number();
  if (x.it.index() != y.it.index()) return false;
  if (const auto* text = x.text()) return *text == *y.text();
  if (const List* list = x.list()) return std::ranges::equal(*list, *y.list(), same);
  if (const Dict* dict = x.dict())
    return dict->size() == y.dict()->size() && std::ranges::all_of(*dict, [&](const auto& each) {
             const Value* other = find(*y.dict(), each.first);
             return other && same(each.second, *other);
           });
  return true;  // both are none, or both undefined
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  int64_t left = 1'000'000;
  return equal_at(a, b, 0, left);
}

Value* find(const Dict& dict, std::string_view key) {
  const auto found = std::ranges::find(dict, key, &Dict::value_type::first);
  return found == dict.end() ? nullptr : const_cast<Value*>(&found->second);
}

namespace {

/// As Python's repr: the shortest that reads back, with an exponent below 1e-4 and from 1e16.
std::string printed_number(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  const double size = std::fabs(number);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, number,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string all(text, end.ptr);
  if (plain && all.find('.') == all.npos) all += ".0";
  return all;
}

void put_json_text(const std::string& text, std::string& to) {
  to += '"';
  for (const char c : text) {
    switch (c) {
      case '"': to += "\\\""; break;
      case '\\': to += "\\\\"; break;
      case '\n': to += "\\n"; break;
      case '\r': to += "\\r"; break;
      case '\t': to += "\\t"; break;
      case '\b': to += "\\b"; break;
      case '\f': to += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          to += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
          to += c;
    }
  }
  to += '"';
}

void put_json(const Value& value, int indent, int depth, std::string& to) {
  if (depth > kMostDeep)
    throw Error(fmt::format("tojson of a value nested over {} deep", kMostDeep));
  if (to.size() > kMostTextBytes) throw Error("tojson makes a text of over 64 MiB");
  const auto new_line = [&](int level) {
    if (indent > 0) (to += '\n').append(static_cast<size_t>(indent * level), ' ');
  };
  const auto between = [&](bool first) {
    if (!first) to += indent > 0 ? "," : ", ";
    new_line(depth + 1);
  };
  if (const List* list = value.list()) {
    to += '[';
    for (const Value& each : *list) {
      between(&each == list->data());
      put_json(each, indent, depth + 1, to);
    }
    if (!list->empty()) new_line(depth);
    to += ']';
  } else if (const Dict* dict = value.dict()) {
    to += '{';
    for (const auto& each : *dict) {
      between(&each == dict->data());
      put_json_text(each.first, to);
      to += ": ";
      put_json(each.second, indent, depth + 1, to);
    }
    if (!dict->empty()) new_line(depth);
    to += '}';
  } else if (const auto* text = value.text()) {
    put_json_text(*text, to);
  } else if (const auto* flag = std::get_if<bool>(&value.it)) {
    to += *flag ? "true" : "false";
  } else if (value.is_none()) {
    to += "null";
  } else if (value.is_undefined()) {
    throw Error("tojson of a value that is undefined");
  } else if (!std::isfinite(value.number())) {
    to += std::isnan(value.number()) ? "NaN" : value.number() > 0 ? "Infinity" : "-Infinity";
  } else {
    to += printed(value);
  }
}

}  // namespace

std::string printed(const Value& value) {
  if (const auto* text = value.text()) return *text;
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (const auto* flag = std::get_if<bool>(&value.it)) return *flag ? "True" : "False";
  if (const auto* whole = value.whole()) return std::to_string(*whole);
  if (value.is_number()) return printed_number(value.number());
  throw Error(fmt::format("{} is printed; use the filter tojson", kind_of(value)));
}

std::string to_json(const Value& value, int indent) {
  std::string text;
  put_json(value, indent, 0, text);
  return text;
}

}  // namespace trireme::format::chat
