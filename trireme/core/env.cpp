#include "trireme/core/env.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "trireme/core/error.h"

namespace trireme::core {

namespace {

template <class T>
std::optional<T> parse(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::string> env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<int64_t> parse_int(std::string_view text) {
  return parse<int64_t>(text);
}

std::optional<double> parse_double(std::string_view text) {
  const auto value = parse<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<int64_t> env_int(const char* name) {
  const auto text = env(name);
  if (!text) return std::nullopt;
  if (const auto value = parse_int(*text)) return value;
  throw ConfigError(fmt::format("{}='{}' is not a whole number", name, *text));
}

std::optional<double> env_double(const char* name) {
  const auto text = env(name);
  if (!text) return std::nullopt;
  if (const auto value = parse_double(*text)) return value;
  throw ConfigError(fmt::format("{}='{}' is not a number", name, *text));
}

}  // namespace trireme::core
