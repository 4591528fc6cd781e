// Operators, members and items, as Python has them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <compare>

#include "trireme/core/error.h"
#include "trireme/format/bpe/unicode.h"
#include "trireme/format/chat/library.h"

namespace trireme::format::chat {

namespace {

constexpr size_t kMostBytes = 64 << 20;

[[noreturn]] void refuse(std::string_view sign, const Value& a, const Value& b) {
  throw Error(fmt::format("'{}' does not work on {} and {}", sign, kind_of(a), kind_of(b)));
}

/// Booleans count as 0 and 1.
Value as_number(const Value& value) {
  const auto* flag = std::get_if<bool>(&value.it);
  return flag ? Value(int64_t{*flag}) : value;
}

Value whole_result(const std::string& sign, int64_t a, int64_t b) {
  int64_t result = 0;
  if ((sign == "//" || sign == "%") && b == -1) {  // the smallest number has no opposite
    if (sign == "%") return int64_t{0};
    if (__builtin_sub_overflow(int64_t{0}, a, &result)) throw Error("a number is too large");
    return result;
  }
  if (sign == "//" || sign == "%") {  // rounds down, and the rest has the divisor's sign
    const int64_t quotient = a / b, rest = a % b;
    const bool down = rest != 0 && (rest < 0) != (b < 0);
    return sign == "//" ? quotient - down : rest + (down ? b : 0);
  }
  const bool over = sign == "+"   ? __builtin_add_overflow(a, b, &result)
                    : sign == "-" ? __builtin_sub_overflow(a, b, &result)
                                  : __builtin_mul_overflow(a, b, &result);
  if (over) throw Error("a number is too large");
  return result;
}

Value arithmetic(const std::string& sign, const Value& x, const Value& y) {
  const Value a = as_number(x), b = as_number(y);
  if (!a.is_number() || !b.is_number()) refuse(sign, x, y);
  const bool divides = sign == "/" || sign == "//" || sign == "%";
  if (divides && b.number() == 0) throw Error(fmt::format("'{}' by zero", sign));
  if (sign != "/" && a.whole() && b.whole()) return whole_result(sign, *a.whole(), *b.whole());
  const double p = a.number(), q = b.number();
  if (sign == "+") return p + q;
  if (sign == "-") return p - q;
  if (sign == "*") return p * q;
  if (sign == "/") return p / q;
  if (sign == "//") return std::floor(p / q);
  return p - q * std::floor(p / q);
}

Value plus(const Value& a, const Value& b) {
  if (a.text() && b.text()) {
    if (a.text()->size() + b.text()->size() > kMostBytes) throw Error("a text is too long");
    return *a.text() + *b.text();
  }
  if (!a.list() || !b.list()) return arithmetic("+", a, b);
  List all = *a.list();
  if (all.size() + b.list()->size() > kMostBytes / 64) throw Error("a list is too long");
  all.insert(all.end(), b.list()->begin(), b.list()->end());
  return Value::of(std::move(all));
}

Value repeated(const Value& text, const Value& times) {
  const int64_t count = std::max<int64_t>(0, *times.whole());
  const auto bytes = static_cast<int64_t>(text.text()->size());
  if (bytes > 0 && count > static_cast<int64_t>(kMostBytes) / bytes)
    throw Error("a text is too long");
  std::string all;
  for (int64_t i = 0; i < count && bytes > 0; ++i) all += *text.text();
  return all;
}

bool contains(const Value& all, const Value& one) {
  if (all.text() && one.text()) return all.text()->find(*one.text()) != std::string::npos;
  if (const Dict* dict = all.dict()) return one.text() && find(*dict, *one.text());
  if (const List* list = all.list())
    return std::ranges::any_of(*list, [&](const Value& each) { return equal(each, one); });
  if (all.is_undefined()) return false;
  refuse("in", one, all);
}

bool ordered(const std::string& sign, const Value& x, const Value& y) {
  const Value a = as_number(x), b = as_number(y);
  std::partial_ordering order = std::partial_ordering::unordered;
  if (a.whole() && b.whole())
    order = *a.whole() <=> *b.whole();
  else if (a.is_number() && b.is_number())
    order = a.number() <=> b.number();
  else if (a.text() && b.text())
    order = *a.text() <=> *b.text();
  else
    refuse(sign, x, y);
  if (sign == "<") return order < 0;
  if (sign == "<=") return order <= 0;
  return sign == ">" ? order > 0 : order >= 0;
}

/// Where the characters of a text begin, and its end.
std::vector<size_t> places_of(const std::string& text) {
  std::vector<size_t> places;
  for (size_t at = 0; at < text.size(); at += char_at(text, at).bytes) places.push_back(at);
  places.push_back(text.size());
  return places;
}

}  // namespace

Value binary(const std::string& sign, const Value& a, const Value& b) {
  if (sign == "==") return equal(a, b);
  if (sign == "!=") return !equal(a, b);
  if (sign == "in") return contains(b, a);
  if (sign == "~") {
    std::string both = printed(a) + printed(b);
    if (both.size() > kMostBytes) throw Error("a text is too long");
    return both;
  }
  if (sign[0] == '<' || sign[0] == '>') return ordered(sign, a, b);
  if (sign == "+") return plus(a, b);
  if (sign == "*" && a.text() && b.whole()) return repeated(a, b);
  if (sign == "*" && a.whole() && b.text()) return repeated(b, a);
  return arithmetic(sign, a, b);
}

Value member_of(const Value& value, const std::string& name) {
  if (value.is_undefined()) throw Error(fmt::format("'.{}' of a value that is undefined", name));
  const Dict* dict = value.dict();
  const Value* found = dict ? find(*dict, name) : nullptr;
  return found ? *found : Value();
}

Value item_of(const Value& value, const Value& item) {
  if (value.is_undefined()) throw Error("an item of a value that is undefined");
  if (item.text()) return member_of(value, *item.text());
  const int64_t* index = item.whole();
  if (index == nullptr) return {};
  const auto place = [&](size_t count) -> std::optional<size_t> {
    const int64_t at = *index < 0 ? *index + static_cast<int64_t>(count) : *index;
    if (at < 0 || at >= static_cast<int64_t>(count)) return std::nullopt;
    return static_cast<size_t>(at);
  };
  if (const List* list = value.list()) {
    const auto at = place(list->size());
    return at ? (*list)[*at] : Value();
  }
  if (const std::string* text = value.text()) {
    const auto places = places_of(*text);
    const auto at = place(places.size() - 1);
    return at ? Value(text->substr(places[*at], places[*at + 1] - places[*at])) : Value();
  }
  return {};
}

Value slice_of(const Value& value, const Value& begin, const Value& end, const Value& step) {
  const List* list = value.list();
  if (!list && !value.text()) throw Error(fmt::format("a slice of {}", kind_of(value)));
  const auto places = list ? std::vector<size_t>() : places_of(*value.text());
  const auto count = static_cast<int64_t>(list ? list->size() : places.size() - 1);
  const auto number = [&](const Value& given, int64_t otherwise) {
    if (given.is_undefined() || given.is_none()) return otherwise;
    if (!given.whole()) throw Error(fmt::format("a slice by {}", kind_of(given)));
    return std::clamp<int64_t>(*given.whole(), -(int64_t{1} << 40), int64_t{1} << 40);
  };
  const int64_t by = number(step, 1);
  if (by == 0) throw Error("a slice with step 0");
  // Before the first is -1 when it goes backwards.
  const auto bound = [&](int64_t at) {
    if (at < 0) at += count;
    return by > 0 ? std::clamp<int64_t>(at, 0, count) : std::clamp<int64_t>(at, -1, count - 1);
  };
  const bool no_end = end.is_undefined() || end.is_none();
  const int64_t first = bound(number(begin, by > 0 ? 0 : count - 1));
  const int64_t last = no_end ? (by > 0 ? count : -1) : bound(number(end, 0));
  List part;
  std::string text;
  for (int64_t i = first; by > 0 ? i < last : i > last; i += by) {
    const auto at = static_cast<size_t>(i);
    if (list)
      part.push_back((*list)[at]);
    else
      text += value.text()->substr(places[at], places[at + 1] - places[at]);
  }
  return list ? Value::of(std::move(part)) : Value(std::move(text));
}

List elements_of(const Value& value) {
  if (const List* list = value.list()) return *list;
  List all;
  if (const Dict* dict = value.dict()) {
    for (const auto& [key, each] : *dict) all.emplace_back(key);
  } else if (const std::string* text = value.text()) {
    const auto places = places_of(*text);
    for (size_t i = 0; i + 1 < places.size(); ++i)
      all.emplace_back(text->substr(places[i], places[i + 1] - places[i]));
  } else if (!value.is_undefined()) {
    throw Error(fmt::format("a for over {}", kind_of(value)));
  }
  return all;
}

}  // namespace trireme::format::chat
