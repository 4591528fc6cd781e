#include "trireme/config/value.h"

#include <fmt/format.h>

namespace trireme::config {

namespace {

/// The text with the escapes of a TOML basic string.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += {'\\', c};
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else if (const auto byte = static_cast<unsigned char>(c); byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\u{:04x}", byte);
    } else {
      result += c;
    }
  }
  return result;
}

struct Text {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return fmt::to_string(value); }
  std::string operator()(double value) const {
    std::string text = fmt::format("{}", value);  // the shortest text that reads back the same
    // Without a point or an exponent it would be an integer, which has no -0.
    if (text.find_first_not_of("-0123456789") == text.npos) text += ".0";
    return text;
  }
  std::string operator()(const std::string& value) const { return '"' + escaped(value) + '"'; }
  std::string operator()(const std::vector<double>& values) const {
    std::string text;
    for (const double value : values) text += (text.empty() ? "" : ", ") + (*this)(value);
    return '[' + text + ']';
  }
  std::string operator()(const std::vector<std::string>& values) const {
    std::string text;
    for (const std::string& value : values) text += (text.empty() ? "" : ", ") + (*this)(value);
    return '[' + text + ']';
  }
  std::string operator()(const Rows& rows) const {
    std::string text;
    for (const Row& row : rows) {
      std::string fields;
      for (const Field& field : row)
        fields += fmt::format("{}{} = {}", fields.empty() ? "" : ", ", field.name,
                              std::visit(*this, field.value));
      text += fmt::format("{}{{{}}}", text.empty() ? "" : ", ", fields);
    }
    return '[' + text + ']';
  }
};

struct Kind {
  std::string_view operator()(bool) const { return "a boolean"; }
  std::string_view operator()(int64_t) const { return "a whole number"; }
  std::string_view operator()(double) const { return "a decimal number"; }
  std::string_view operator()(const std::string&) const { return "a string"; }
  std::string_view operator()(const std::vector<double>&) const { return "an array of numbers"; }
  std::string_view operator()(const std::vector<std::string>&) const {
    return "an array of strings";
  }
  std::string_view operator()(const Rows&) const { return "a list of tables"; }
};

}  // namespace

std::string to_text(const Value& value) {
  return std::visit(Text{}, value);
}

std::string_view kind_of(const Value& value) {
  return std::visit(Kind{}, value);
}

Value value_of(Cell cell) {
  return std::visit([](auto& value) { return Value(std::move(value)); }, cell);
}

std::string shortened(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string line;
  for (const char c : text.substr(0, kMost + 1)) {
    const auto byte = static_cast<unsigned char>(c);
    line += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  if (line.size() <= kMost) return line;
  std::size_t end = kMost - 3;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xc0) == 0x80) --end;  // whole letters
  return line.substr(0, end) + "...";
}

}  // namespace trireme::config
