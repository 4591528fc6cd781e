// The limits of a key: checking a value against them, and describing them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/config/keys.h"
#include "trireme/config/nearest.h"

namespace trireme::config {

namespace {

std::string quoted_list(std::span<const std::string_view> words) {
  std::string list;
  for (const std::string_view word : words)
    list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", word);
  return list;
}

bool in_range(const Limits& limits, double value) {
  return !(limits.at_least && value < *limits.at_least) &&
         !(limits.more_than && value <= *limits.more_than) &&
         !(limits.at_most && value > *limits.at_most) &&
         !(limits.less_than && value >= *limits.less_than);
}

/// Bounds as words, e.g. "more than 0 and at most 1".
std::string range_text(const Limits& limits) {
  std::vector<std::string> parts;
  if (limits.at_least) parts.push_back(fmt::format("at least {}", *limits.at_least));
  if (limits.more_than) parts.push_back(fmt::format("more than {}", *limits.more_than));
  if (limits.at_most) parts.push_back(fmt::format("at most {:.10g}", *limits.at_most));
  if (limits.less_than) parts.push_back(fmt::format("less than {}", *limits.less_than));
  return fmt::format("{}", fmt::join(parts, " and "));
}

/// What is wrong with a value of the key's type; the text follows "name = value".
struct Problem {
  const Limits& limits;
  using Text = std::optional<std::string>;

  Text operator()(bool) const { return {}; }

  Text operator()(int64_t value) const {
    constexpr int kMost = std::numeric_limits<int>::max();
    if (limits.fits_int && value > kMost)
      return fmt::format("is out of range; it must be at most {}", kMost);
    if (in_range(limits, static_cast<double>(value))) return {};
    return fmt::format("is out of range; it must be {}", range_text(limits));
  }

  Text operator()(double value) const {
    if (!std::isfinite(value)) return "is not finite; it must be a finite number";
    if (in_range(limits, value)) return {};
    return fmt::format("is out of range; it must be {}", range_text(limits));
  }

  Text operator()(const std::vector<double>& values) const {
    if (limits.count != 0 && values.size() != limits.count)
      return fmt::format("has {} number{}; it must have {}", values.size(),
                         values.size() == 1 ? "" : "s", limits.count);
    for (const double value : values) {
      if (!std::isfinite(value)) return "is not finite; it must hold finite numbers";
      if (!in_range(limits, value))
        return fmt::format("is out of range; each must be {}", range_text(limits));
    }
    return {};
  }

  Text operator()(const std::vector<std::string>& values) const {
    for (const std::string& value : values)
      if (value.empty() || value.find('\0') != value.npos)
        return "holds an empty string, or a NUL; each must be some text";
    return {};
  }

  /// The fields are checked one by one, with their columns.
  Text operator()(const Rows&) const { return {}; }

  Text operator()(const std::string& value) const {
    if (value.find('\0') != value.npos) return "holds a NUL; it must be text without one";
    if (limits.not_empty && value.empty()) return "is empty; it must be some text";
    const auto is_in = [&](const auto& words) {
      return std::ranges::find(words, value) != words.end();
    };
    if (limits.can_read && !limits.can_read(value)) return std::string(limits.unreadable);
    if (limits.words.empty() || is_in(limits.words) || is_in(limits.later)) return {};
    const auto meant = nearest(value, limits.words);
    return fmt::format("is none of {}{}", quoted_list(limits.words),
                       meant ? fmt::format("; did you mean \"{}\"?", *meant) : "");
  }
};

}  // namespace

std::string_view wanted_kind(const Key& key) {
  static constexpr std::string_view kinds[] = {
      "true or false",       "a whole number",      "a number",        "a string",
      "an array of numbers", "an array of strings", "a list of tables"};
  static_assert(std::size(kinds) == std::variant_size_v<Member>);
  if (key.or_tables) return "a string or a list of tables";
  return kinds[key.member.index()];
}

std::string_view wanted_kind(const Column& column) {
  static constexpr std::string_view kinds[] = {"true or false", "a whole number", "a number",
                                               "a string"};
  static_assert(std::size(kinds) == std::variant_size_v<Cell>);
  return kinds[column.kind.index()];
}

std::string wanted_value(const Key& key) {
  const Limits& limits = key.limits;
  if (!limits.words.empty()) return "one of " + quoted_list(limits.words);
  if (limits.count != 0)
    return fmt::format("{} numbers, each {}", limits.count, range_text(limits));
  return range_text(limits);
}

std::optional<std::string> problem_with(const Column& column, std::string_view name,
                                        const Cell& cell) {
  const std::string text = fmt::format("{} = {}", name, shortened(to_text(value_of(cell))));
  if (cell.index() != column.kind.index())
    return fmt::format("{} is {}; it must be {}", text, kind_of(value_of(cell)),
                       wanted_kind(column));
  const auto problem = std::visit(Problem{column.limits}, cell);
  if (!problem) return {};
  return text + ' ' + *problem;
}

namespace {

/// For rows that do not come from a file, and that nobody has checked field by field.
std::optional<std::string> problem_with_rows(const Key& key, const Rows& rows) {
  const std::span<const Column> columns = key.tables()->columns();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const Field& field : rows[i]) {
      const auto column = std::ranges::find(columns, field.name, &Column::name);
      const std::string name = fmt::format("{}[{}].{}", key.name, i, shortened(field.name));
      if (column == columns.end()) return fmt::format("unknown key '{}'", name);
      if (auto problem = problem_with(*column, name, field.value)) return problem;
    }
  }
  return {};
}

}  // namespace

std::optional<std::string> problem_with(const Key& key, const Value& value) {
  const auto* rows = std::get_if<Rows>(&value);
  if (rows != nullptr && key.tables() != nullptr) return problem_with_rows(key, *rows);
  const std::string text = fmt::format("{} = {}", key.name, shortened(to_text(value)));
  if (value.index() != key.member.index())
    return fmt::format("{} is {}; it must be {}", text, kind_of(value), wanted_kind(key));
  const auto problem = std::visit(Problem{key.limits}, value);
  if (!problem) return {};
  return text + ' ' + *problem;
}

}  // namespace trireme::config
