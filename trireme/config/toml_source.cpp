// The only file that knows the TOML parser.
#include "trireme/config/toml_source.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme::config {

namespace {

// a.a.a.a = 1 nests a table per dot, and the parser's tables are destroyed by recursion: without a
// bound, a file of a megabyte overflows the stack. Keys have one dot, so this is for values.
constexpr std::size_t kMostDots = 4096;

/// Where the text has its first dot too many.
std::optional<Place> dot_too_many(std::string_view text) {
  Place place = {1, 1};
  std::size_t dots = 0;
  for (const char c : text) {
    if (c == '.' && ++dots > kMostDots) return place;
    place = c == '\n' ? Place{place.line + 1, 1} : Place{place.line, place.column + 1};
  }
  return {};
}

Place place_of(const toml::source_position& position) {
  return {position.line, position.column};
}

std::optional<double> number_in(const toml::node& node) {
  if (const auto* value = node.as_floating_point()) return value->get();
  if (const auto* value = node.as_integer()) return static_cast<double>(value->get());
  return {};
}

Found found_in(const toml::node& node) {
  if (const auto* value = node.as_boolean()) return Value(value->get());
  if (const auto* value = node.as_integer()) return Value(value->get());
  if (const auto* value = node.as_floating_point()) return Value(value->get());
  if (const auto* value = node.as_string()) return Value(value->get());
  if (const auto* array = node.as_array()) {
    std::vector<double> numbers;
    for (const toml::node& each : *array) {
      const auto number = number_in(each);
      if (!number) return Other{"an array of other things"};
      numbers.push_back(*number);
    }
    return Value(std::move(numbers));
  }
  return Other{node.is_table() ? kTableKind : "a date or time"};
}

/// The parser's own words, which begin "Error while parsing key-value pair: ".
std::string sentence_of(const toml::parse_error& error) {
  std::string text(error.description());
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20; }, ' ');
  constexpr std::string_view kUsual = "Error while parsing ";
  if (text.starts_with(kUsual)) text = "in a " + text.substr(kUsual.size());
  return text;
}

}  // namespace

std::vector<Entry> read_toml(std::string_view text, std::string_view file_name) {
  if (const auto place = dot_too_many(text))
    throw ConfigError(fmt::format("{}:{}:{}: not a configuration: more than {} dots", file_name,
                                  place->line, place->column, kMostDots));
  toml::table root;
  try {
    root = toml::parse(text);
  } catch (const toml::parse_error& error) {
    const auto [line, column] = place_of(error.source().begin);
    throw ConfigError(
        fmt::format("{}:{}:{}: not TOML: {}", file_name, line, column, sentence_of(error)));
  }
  std::vector<Entry> entries;
  for (const auto& [section, node] : root) {
    const std::string section_name(section.str());
    entries.push_back({section_name, std::nullopt, found_in(node), place_of(section.source().begin),
                       place_of(node.source().begin)});
    if (!node.is_table()) continue;
    for (const auto& [key, value] : *node.as_table())
      entries.push_back({section_name, std::string(key.str()), found_in(value),
                         place_of(key.source().begin), place_of(value.source().begin)});
  }
  std::ranges::stable_sort(entries, {},
                           &Entry::name_place);  // the parser's tables are sorted by name
  return entries;
}

std::optional<Found> read_toml_value(std::string_view text) {
  if (dot_too_many(text)) return {};
  try {
    const toml::table root = toml::parse("value = " + std::string(text));
    if (root.size() == 1) return found_in(*root.get("value"));  // not "1\nother = 2"
  } catch (const toml::parse_error&) {
  }
  return {};
}

}  // namespace trireme::config
