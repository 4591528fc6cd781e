// Filters, tests, methods and functions: tables of names, so that an unknown one can be named.
#include "trireme/format/chat/library.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>

#include "trireme/core/error.h"
#include "trireme/format/bpe/unicode.h"

namespace trireme::format::chat {

namespace {

constexpr size_t kMostElements = 100'000, kMostMadeBytes = 64 << 20;

using Function = std::function<Value(const Value&, const Arguments&)>;
using Table = std::map<std::string, Function, std::less<>>;

const std::string& need_text(const Value& value, std::string_view what) {
  if (!value.text()) throw Error(fmt::format("{} of {}", what, kind_of(value)));
  return *value.text();
}

/// What Python's str.strip takes.
bool is_white(uint32_t code) {
  return class_of(code) == CharClass::Space || (code >= 0x1C && code <= 0x1F);
}

template <class Change>
std::string ascii_changed(const Value& value, std::string_view what, Change change) {
  std::string text = need_text(value, what);
  bool word_goes_on = false;
  for (char& c : text) {
    if (static_cast<unsigned char>(c) >= 0x80)
      throw Error(fmt::format("{} of text that is not ASCII is not supported", what));
    const char low = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    const bool letter = low >= 'a' && low <= 'z';
    if (letter) c = change(word_goes_on) ? static_cast<char>(low - 32) : low;
    word_goes_on = letter;
  }
  return text;
}

Value upper(const Value& value, const Arguments&) {
  return ascii_changed(value, "upper", [](bool) { return true; });
}
Value lower(const Value& value, const Arguments&) {
  return ascii_changed(value, "lower", [](bool) { return false; });
}
Value title(const Value& value, const Arguments&) {
  return ascii_changed(value, "title", [](bool goes_on) { return !goes_on; });
}
Value capitalize(const Value& value, const Arguments&) {
  std::string text = ascii_changed(value, "capitalize", [](bool) { return false; });
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 32);
  return text;
}

template <Ends ends>
Value strip(const Value& value, const Arguments& arguments) {
  const Value set = arguments.at(0, "chars");
  const bool given = !set.is_undefined() && !set.is_none();
  if (given && need_text(set, "strip").empty()) return value;
  return stripped(need_text(value, "strip"), given ? *set.text() : "", ends);
}

Value replace(const Value& value, const Arguments& arguments) {
  const Value old = arguments.at(0, "old"), fresh = arguments.at(1, "new");
  const std::string &text = need_text(value, "replace"), &from = need_text(old, "replace"),
                    &to = need_text(fresh, "replace");
  if (from.empty()) throw Error("replace of an empty text is not supported");
  std::string all;
  for (size_t at = 0;;) {
    const size_t found = text.find(from, at);
    all += text.substr(at, found - at);
    if (found == text.npos) return all;
    all += to;
    if (all.size() > kMostMadeBytes) throw Error("a text is too long");
    at = found + from.size();
  }
}

Value split(const Value& value, const Arguments& arguments) {
  const std::string& text = need_text(value, "split");
  const Value given = arguments.at(0, "sep"), most = arguments.at(1, "maxsplit");
  if (given.is_undefined() || given.is_none()) throw Error("split needs a separator");
  const std::string& separator = need_text(given, "split");
  if (separator.empty()) throw Error("split needs a separator");
  const int64_t limit = most.whole() ? *most.whole() : -1;
  List parts;
  for (size_t at = 0;;) {
    const bool enough = limit >= 0 && static_cast<int64_t>(parts.size()) >= limit;
    const size_t found = enough ? text.npos : text.find(separator, at);
    parts.emplace_back(text.substr(at, found - at));
    if (found == text.npos) return Value::of(std::move(parts));
    at = found + separator.size();
  }
}

Value length(const Value& value, const Arguments&) {
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->size());
  if (!value.list() && !value.text() && !value.is_undefined())
    throw Error(fmt::format("length of {}", kind_of(value)));
  return static_cast<int64_t>(elements_of(value).size());
}

Value join(const Value& value, const Arguments& arguments) {
  const Value between = arguments.at(0, "d");
  std::string all;
  bool first = true;
  for (const Value& each : elements_of(value)) {
    if (!first && !between.is_undefined()) all += printed(between);
    first = false;
    all += printed(each);
    if (all.size() > kMostMadeBytes) throw Error("a text is too long");
  }
  return all;
}

Value first_of(const Value& value, const Arguments&) {
  const List all = elements_of(value);
  return all.empty() ? Value() : all.front();
}
Value last_of(const Value& value, const Arguments&) {
  const List all = elements_of(value);
  return all.empty() ? Value() : all.back();
}

Value or_default(const Value& value, const Arguments& arguments) {
  const bool also_if_false = is_true(arguments.at(1, "boolean"));
  const bool missing = value.is_undefined() || (also_if_false && !is_true(value));
  const Value other = arguments.at(0, "default_value");
  if (!missing) return value;
  return other.is_undefined() ? Value(std::string()) : other;
}

Value tojson(const Value& value, const Arguments& arguments) {
  const Value indent = arguments.at(0, "indent");
  const bool plain = indent.is_undefined() || indent.is_none();
  if (!plain && (!indent.whole() || *indent.whole() < 1 || *indent.whole() > 16))
    throw Error("tojson: indent must be a number from 1 to 16");
  return to_json(value, plain ? 0 : static_cast<int>(*indent.whole()));
}

const Dict& need_dict(const Value& value, std::string_view what) {
  if (!value.dict()) throw Error(fmt::format("{} of {}", what, kind_of(value)));
  return *value.dict();
}

Value items(const Value& value, const Arguments&) {
  List all;
  for (const auto& [key, each] : need_dict(value, "items"))
    all.push_back(Value::of(List{Value(key), each}));
  return Value::of(std::move(all));
}
Value keys(const Value& value, const Arguments&) {
  need_dict(value, "keys");
  return Value::of(elements_of(value));
}
Value values(const Value& value, const Arguments&) {
  List all;
  for (const auto& [key, each] : need_dict(value, "values")) all.push_back(each);
  return Value::of(std::move(all));
}
Value get(const Value& value, const Arguments& arguments) {
  const Value* found = find(need_dict(value, "get"), need_text(arguments.at(0, "key"), "get"));
  if (found) return *found;
  const Value other = arguments.at(1, "default");
  return other.is_undefined() ? Value(None{}) : other;
}

Value starts_with(const Value& value, const Arguments& arguments) {
  return need_text(value, "startswith")
      .starts_with(need_text(arguments.at(0, "prefix"), "startswith"));
}
Value ends_with(const Value& value, const Arguments& arguments) {
  return need_text(value, "endswith").ends_with(need_text(arguments.at(0, "suffix"), "endswith"));
}

const Table& filters() {
  static const Table all = {
      {"trim", strip<Ends::Both>},
      {"tojson", tojson},
      {"length", length},
      {"count", length},
      {"upper", upper},
      {"lower", lower},
      {"title", title},
      {"join", join},
      {"capitalize", capitalize},
      {"first", first_of},
      {"last", last_of},
      {"default", or_default},
      {"replace", replace},
      {"items", items},
      {"string", [](const Value& value, const Arguments&) { return Value(printed(value)); }},
      {"list", [](const Value& value, const Arguments&) { return Value::of(elements_of(value)); }},
      {"safe", [](const Value& value, const Arguments&) { return value; }}};
  return all;
}

const Table& methods() {
  static const Table all = {{"strip", strip<Ends::Both>},
                            {"lstrip", strip<Ends::Left>},
                            {"rstrip", strip<Ends::Right>},
                            {"split", split},
                            {"replace", replace},
                            {"startswith", starts_with},
                            {"endswith", ends_with},
                            {"upper", upper},
                            {"lower", lower},
                            {"title", title},
                            {"capitalize", capitalize},
                            {"items", items},
                            {"keys", keys},
                            {"values", values},
                            {"get", get}};
  return all;
}

Value call(const Table& table, const char* what, const std::string& name, const Value& value,
           const Arguments& arguments) {
  const auto found = table.find(name);
  if (found != table.end()) return found->second(value, arguments);
  std::string known;
  for (const auto& [each, function] : table) known += (known.empty() ? "" : ", ") + each;
  throw Error(fmt::format("the {} '{}' is not supported; {} are", what, name, known));
}

Value range(const Arguments& arguments) {
  const auto number = [&](size_t i) {
    const Value value = arguments.at(i, "");
    if (!value.whole()) throw Error(fmt::format("range of {}", kind_of(value)));
    return *value.whole();
  };
  const bool both = arguments.listed.size() > 1;
  const int64_t begin = both ? number(0) : 0, end = number(both ? 1 : 0),
                step = arguments.listed.size() > 2 ? number(2) : 1;
  if (step == 0) throw Error("range with step 0");
  List all;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (all.size() == kMostElements) throw Error("range of more than 100000 numbers");
    all.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::of(std::move(all));
}

}  // namespace

Value Arguments::at(size_t index, std::string_view name) const {
  if (index < listed.size()) return listed[index];
  for (const auto& [key, value] : named)
    if (key == name) return value;
  return {};
}

std::string stripped(std::string_view text, std::string_view set, Ends ends) {
  const auto goes = [&](size_t at, size_t bytes) {
    return set.empty() ? is_white(char_at(text, at).code)
                       : set.find(text.substr(at, bytes)) != set.npos;
  };
  size_t begin = 0, end = text.size();
  while (ends != Ends::Right && begin < end) {
    const size_t bytes = char_at(text, begin).bytes;
    if (!goes(begin, bytes)) break;
    begin += bytes;
  }
  while (ends != Ends::Left && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (!goes(last, end - last)) break;
    end = last;
  }
  return std::string(text.substr(begin, end - begin));
}

Value call_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  // Jinja's filters take what is no text as it is printed.
  const bool of_text = name == "trim" || name == "upper" || name == "lower" || name == "title" ||
                       name == "capitalize" || name == "replace";
  return call(filters(), "filter", name, of_text ? Value(printed(value)) : value, arguments);
}

Value call_method(const std::string& name, const Value& value, const Arguments& arguments) {
  if (value.is_undefined()) throw Error(fmt::format("'.{}()' of a value that is undefined", name));
  return call(methods(), "method", name, value, arguments);
}

bool call_test(const std::string& name, const Value& value, const Arguments& arguments) {
  const auto* flag = std::get_if<bool>(&value.it);
  const bool dict = value.dict() != nullptr, list = value.list() != nullptr, text = value.text();
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return text;
  if (name == "mapping") return dict;
  if (name == "sequence") return list || dict || text || value.is_undefined();
  if (name == "iterable") return list || dict || text || value.is_undefined();
  if (name == "number") return value.is_number() || flag;
  if (name == "integer") return value.whole();
  if (name == "float") return std::holds_alternative<double>(value.it);
  if (name == "boolean") return flag;
  if (name == "true") return flag && *flag;
  if (name == "false") return flag && !*flag;
  if (name == "equalto" || name == "eq") return equal(value, arguments.at(0, ""));
  if ((name == "odd" || name == "even") && value.whole())
    return (*value.whole() % 2 != 0) == (name == "odd");
  throw Error(fmt::format("the test 'is {}' is not supported for {}", name, kind_of(value)));
}

Value call_function(const std::string& name, const Arguments& arguments) {
  if (name == "raise_exception") {
    const Value message = arguments.at(0, "message");
    throw Error(message.text() ? *message.text() : "the template refuses the conversation");
  }
  if (name == "range") return range(arguments);
  if (name == "namespace" || name == "dict") {
    if (!arguments.listed.empty()) throw Error(fmt::format("{} takes names and values", name));
    return Value::of(Dict(arguments.named.begin(), arguments.named.end()));
  }
  throw Error(fmt::format(
      "the function '{}' is not supported; raise_exception, range, namespace and dict are", name));
}

}  // namespace trireme::format::chat
